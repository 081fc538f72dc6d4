"""The files of an export: whatever is cut off, altered or newer is named and refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import fakeredis
import msgpack
import pytest
import xxhash

from redis_replay.checkpoint_files import FORMAT, MAGIC, MANIFEST, ManifestWriter, read_blocks
from redis_replay.errors import CheckpointDamaged, CheckpointMissing, SchemaMismatch
from redis_replay.exported import read_exported
from redis_replay.packs import check_export, read_batches
from redis_replay.run import SCHEMA
from tests.contract.exports import fill, pack_in
from tests.contract.keyspace import nothing_changed
from tests.harness import Runs

Block = tuple[str, Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a run with everything in it."""
    folder = tmp_path_factory.mktemp("original")

    async def write() -> None:
        async with Runs(fakeredis.FakeAsyncRedis()).open(groups_per_step=2) as store:
            await fill(store)
            await store.checkpoints.create("one")
            await store.checkpoints.export("one", folder)

    anyio.run(write)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(original, tmp_path / "copy"))


def check(folder: Path) -> None:
    """Read everything, as an import does before it writes."""
    for _ in read_batches(read_exported(folder)):
        pass


def rewrite(folder: Path, change: Callable[[list[Block]], Iterator[Block] | list[Block]]) -> None:
    """Write a manifest anew, with right checksums, from other blocks."""
    blocks = list(change(list(read_blocks(folder / MANIFEST))))
    writer = ManifestWriter(folder)
    for kind, value in blocks:
        writer.add(kind, value)
    writer.finish()


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[list[Block]], list[Block]]:
    """Return a change of the header's record."""

    def apply(blocks: list[Block]) -> list[Block]:
        change(blocks[0][1]["checkpoint"])
        return blocks

    return apply


def test_a_whole_export_is_accepted(folder: Path) -> None:
    check(folder)
    assert FORMAT == int.from_bytes((folder / MANIFEST).read_bytes()[len(MAGIC) :][:4], "little")


def test_a_change_of_any_byte_of_any_file_is_refused(folder: Path) -> None:
    for path in (folder / MANIFEST, pack_in(folder)):
        written = path.read_bytes()
        for at in range(0, len(written), 5):
            altered = bytearray(written)
            altered[at] ^= 0x41
            path.write_bytes(altered)
            with pytest.raises((CheckpointDamaged, SchemaMismatch), match=path.name):
                check(folder)
        path.write_bytes(written)


def test_a_file_of_any_other_length_is_refused(folder: Path) -> None:
    for path in (folder / MANIFEST, pack_in(folder)):
        written = path.read_bytes()
        for length in (0, 1, 15, 20, 31, len(written) // 2, len(written) - 1):
            path.write_bytes(written[:length])
            with pytest.raises(CheckpointDamaged, match=path.name):
                check(folder)
        path.write_bytes(written + b"\0")
        with pytest.raises(CheckpointDamaged, match=path.name):
            check(folder)
        path.write_bytes(written)


def test_a_damage_is_named_by_file_place_and_group(folder: Path) -> None:
    pack = pack_in(folder)
    entry = read_exported(folder).entries[1]
    written = bytearray(pack.read_bytes())
    written[entry.end - 1] ^= 1
    pack.write_bytes(written)
    with pytest.raises(CheckpointDamaged) as damaged:
        check(folder)
    said = str(damaged.value)
    for words in (
        str(pack),
        f"bytes {entry.offset} to {entry.end}",
        repr(entry.group_id),
        "checksum",
        "nothing was changed",
    ):
        assert words in said
    size = len(written)
    pack.write_bytes(written[:-7])
    with pytest.raises(CheckpointDamaged, match=rf"has {size - 7} bytes, written were {size}"):
        check(folder)
    pack.unlink()
    with pytest.raises(CheckpointDamaged, match=rf"{pack.name} is gone"):
        check(folder)
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:100])
    with pytest.raises(CheckpointDamaged, match=r"manifest .* cut off: the block at offset 20"):
        check(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(CheckpointMissing, match="never finished"):
        check(folder)


def test_a_newer_format_or_schema_is_refused_with_both_numbers(folder: Path) -> None:
    manifest = folder / MANIFEST
    written = bytearray(manifest.read_bytes())
    written[len(MAGIC)] = FORMAT + 1
    manifest.write_bytes(written)
    with pytest.raises(SchemaMismatch, match=rf"format {FORMAT + 1}; .* up to {FORMAT}"):
        check(folder)
    written[len(MAGIC)] = FORMAT
    manifest.write_bytes(written)
    rewrite(folder, with_header(lambda record: record.update(schema=SCHEMA + 1)))
    with pytest.raises(SchemaMismatch, match=rf"schema {SCHEMA + 1}; .* up to {SCHEMA}"):
        check(folder)


def page_twice(blocks: list[Block]) -> Iterator[Block]:
    """Yield a slots page twice."""
    for kind, value in blocks:
        yield kind, value
        if kind == "slots":
            yield kind, value


def test_a_group_that_stands_twice_is_a_value_error_that_names_a_sample(folder: Path) -> None:
    rewrite(folder, page_twice)
    with pytest.raises(ValueError, match=r"twice, so sample '.*_g0' does too; nothing was changed"):
        check(folder)


def groups_changed(change: Callable[[list[Any]], Any]) -> Callable[[list[Block]], list[Block]]:
    """Return a change of the first page of places."""

    def apply(blocks: list[Block]) -> list[Block]:
        change(next(value for kind, value in blocks if kind == "groups"))
        return blocks

    return apply


def packs_changed(change: Callable[[list[Any]], Any]) -> Callable[[list[Block]], list[Block]]:
    """Return a change of the list of packs."""

    def apply(blocks: list[Block]) -> list[Block]:
        change(next(value for kind, value in blocks if kind == "packs"))
        return blocks

    return apply


STRANGE: dict[str, tuple[Callable[[list[Block]], Any], str]] = {
    "a pack elsewhere": (
        packs_changed(lambda packs: packs.append(["../../../etc/passwd", 9])),
        "sixteen hexadecimal digits",
    ),
    "a pack that is no text": (packs_changed(lambda packs: packs.append([7, 9])), "sixteen"),
    "rows behind a pack": (
        groups_changed(lambda page: page[0].__setitem__(3, 2**40)),
        "lie outside its packs",
    ),
    "rows before a pack": (
        groups_changed(lambda page: page[0].__setitem__(3, -1)),
        "lie outside its packs",
    ),
    "rows of no group": (groups_changed(lambda page: page[0].__setitem__(0, "x")), "no group of"),
    "no rows of a group": (groups_changed(lambda page: page.pop()), "rows of group .* not in it"),
    "fewer words": (groups_changed(lambda page: page[0].pop()), "Expected 8 arguments"),
    "an unknown block": (lambda blocks: [*blocks, ("strange", [])], "'strange' is not a valid Key"),
    "no blocks": (lambda _: [], "it is empty"),
    "no header": (lambda blocks: blocks[1:], "manifest is not what was written"),
    "another count": (
        with_header(lambda record: record.update(ready=99)),
        "it has 3 ready groups, written were 99",
    ),
    "another digest": (with_header(lambda record: record.update(digest="0")), "its digest is"),
    "a text for a number": (with_header(lambda record: record.update(seq="1")), "seq is '1'"),
    "a number too large": (with_header(lambda record: record.update(seq=2**53)), "seq is 9007"),
    "a name with a path": (with_header(lambda record: record.update(name="../x")), "name is 1 to"),
    "a field more": (with_header(lambda record: record.update(more=1)), "'more'"),
    "a field less": (with_header(lambda record: record.pop("seq")), "'seq'"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_manifest_with_right_checksums_that_makes_no_sense_is_refused(
    folder: Path, name: str
) -> None:
    change, words = STRANGE[name]
    rewrite(folder, change)
    with pytest.raises(CheckpointDamaged, match=words):
        check(folder)


def test_a_block_that_is_no_value_is_refused_at_its_offset(folder: Path) -> None:
    for body in (b"\xc1", msgpack.packb(1), msgpack.packb([1, 2, 3])):
        head = MAGIC + FORMAT.to_bytes(4, "little")
        checksum = xxhash.xxh3_64_digest(body)[::-1]
        (folder / MANIFEST).write_bytes(head + len(body).to_bytes(4, "little") + checksum + body)
        with pytest.raises(CheckpointDamaged, match="offset 20 is not readable"):
            check(folder)


@pytest.mark.anyio
@pytest.mark.parametrize("damage", ["manifest", "pack", "newer", "twice"])
async def test_nothing_is_written_if_a_file_is_wrong(runs: Runs, folder: Path, damage: str) -> None:
    pack, manifest = pack_in(folder), folder / MANIFEST
    if damage == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:-1])
    elif damage == "pack":
        pack.write_bytes(pack.read_bytes()[:-1] + b"?")
    elif damage == "newer":
        rewrite(folder, with_header(lambda record: record.update(schema=SCHEMA + 1)))
    else:
        rewrite(folder, page_twice)
    async with runs.open() as store:
        await store.checkpoints.create("here")
        async with nothing_changed(runs):
            with pytest.raises((CheckpointDamaged, SchemaMismatch, ValueError)):
                await store.checkpoints.import_(folder)


@pytest.mark.anyio
async def test_checking_tells_how_far_it_is(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    exported = await check_export(
        folder, on_progress=lambda p: told.append((p.stage, p.done_bytes, p.total_bytes))
    )
    assert [("check", exported.payload_bytes, exported.payload_bytes)] == told
    assert 4 == exported.group_count

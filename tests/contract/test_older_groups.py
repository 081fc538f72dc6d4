"""A run with groups of older formats: they are claimed, read, kept, exported and imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redis_replay import ReplayStore, Rule, Selection
from redis_replay.payloads import EncodedGroup
from tests.harness import Runs
from tests.identity import identity_of
from tests.stored_groups import OF_FORMAT_1, OF_FORMAT_2, stored

pytestmark = pytest.mark.anyio

SIZE = 3
GROUPS: dict[str, tuple[int, list[dict[str, Any]]]] = {
    "tokens": (1, OF_FORMAT_1["tokens"]),
    **{name: (2, OF_FORMAT_2[name]) for name in ("narrowed", "compressed", "shared")},
}


def by_field(rows: Any) -> list[dict[str, Any]]:
    return [{name: identity_of(value) for name, value in row.items()} for row in rows]


async def commit_as_then(
    store: ReplayStore, name: str, monkeypatch: pytest.MonkeyPatch, *, group_id: str
) -> None:
    """Commit a group as the version of its time wrote it."""
    number, rows = GROUPS[name]
    kept = stored(number, name)
    encoded = EncodedGroup(
        payload=kept["payload"],
        directory=kept["directory"],
        payload_bytes=len(kept["payload"]),
        fields=tuple(rows[0]),
        lengths=(0,) * SIZE,
        rewards=None,
    )
    with monkeypatch.context() as patched:
        patched.setattr("redis_replay.commits.encode_group", lambda *_, **__: encoded)
        patched.setattr("redis_replay.commits.pack_record", lambda *_, **__: kept["record"])
        await store.buffer.reserve(0, group_id=group_id)
        await store.buffer.commit(group_id, rows, start_weight_version=0, end_weight_version=0)


async def read_back(store: ReplayStore, *names: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of groups, after some of them were read alone."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        samples = [f"{name}_g{row}" for row in range(SIZE)]
        found[name] = by_field(await store.samples.get_samples(samples))
        for wanted in ([samples[1]], [samples[2], samples[0]]):
            part = by_field(await store.samples.get_samples(wanted))
            assert [found[name][samples.index(sample)] for sample in wanted] == part
    return found


EXPECTED = {name: by_field(rows) for name, (_, rows) in GROUPS.items()}


async def test_groups_of_older_formats_are_claimed_with_newer_ones_and_read(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open(group_size=SIZE) as store:
        for name in GROUPS:
            await commit_as_then(store, name, monkeypatch, group_id=name)
            await store.buffer.reserve(0, group_id=f"new {name}")
            await store.buffer.commit(
                f"new {name}", GROUPS[name][1], start_weight_version=0, end_weight_version=0
            )
        meta, count = await store.buffer.claim(Selection(Rule.BUFFER, 0, 0, 1, 64))
        assert meta is not None
        assert 2 * len(GROUPS) == count
        assert [5, 6, 7, 5, 6, 7] == meta.sequence_lengths[:6]
        assert [[0.0, 1.0, 2.0]] * 2 == meta.extra_info["rewards"][:2]
        assert ({"row", "group_id"}, {"group_id"}) == tuple(
            {"row", "group_id"} & tag.keys() for tag in (meta.tags[0], meta.tags[3])
        )
        assert EXPECTED == await read_back(store, *GROUPS)
        newer = await read_back(store, *(f"new {name}" for name in GROUPS))
        assert list(EXPECTED.values()) == list(newer.values())
        assert (await store.audit()).is_clean


async def test_groups_of_older_formats_are_kept_exported_imported_and_restored(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open(group_size=SIZE) as store:
        for name in GROUPS:
            await commit_as_then(store, name, monkeypatch, group_id=name)
        await store.checkpoints.create("one")
        assert (await store.checkpoints.verify("one", deep=True)).is_whole
        assert 4 == (await store.checkpoints.export("one", tmp_path)).groups_written
        assert 0 == (await store.checkpoints.export("one", tmp_path)).groups_written
    async with runs.open(group_size=SIZE, partition="other") as store:
        await store.checkpoints.import_(tmp_path)
        await store.checkpoints.restore("one")
        assert EXPECTED == await read_back(store, *GROUPS)


async def test_a_damaged_group_of_an_older_format_is_found(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open(group_size=SIZE) as store:
        for name in GROUPS:
            await commit_as_then(store, name, monkeypatch, group_id=name)
        [damaged] = [key for key in await runs.payload_keys() if "narrowed" in key]
        there = await runs.client.get(damaged)
        await runs.client.set(damaged, there[:3] + bytes([there[3] ^ 1]) + there[4:])
        await store.checkpoints.create("one")
        found = await store.checkpoints.verify("one", deep=True)
        assert {"narrowed"} == found.damaged.keys()
        assert "checksum" in found.damaged["narrowed"]

"""Nobody ever sees a cursor without its reservations, or reservations without their cursor."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

import redis_replay
from redis_replay import InOrderSampler, InOrderSamplerConfig, ReplayStore, create_sampler
from redis_replay._redis.keys import Key
from redis_replay.errors import AdmissionConflict, CutExpired, DuplicateGroup
from tests.contract.keyspace import attached, control_key, nothing_changed
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

WRITERS, BATCH = 8, 3
OPEN_GATE = 10**9


def in_order(place: Any) -> InOrderSampler:
    """Return an ``in_order`` sampler whose gate stays open."""
    sampler = create_sampler(place.buffer, InOrderSamplerConfig(max_lookahead_versions=2))
    assert isinstance(sampler, InOrderSampler)
    return sampler


class Reader:
    """Reads what a checkpoint would hold, all in one ``MULTI``, as fast as it can."""

    def __init__(self, runs: Runs, client: Any) -> None:
        self.client = client
        self.keys = [control_key(runs, key) for key in (Key.META, Key.SLOTS, Key.PROMPTS)]
        self.rounds = 0
        self.seen: set[int] = set()

    async def look(self) -> None:
        """Read once and check that cursor, loader, slots and prompts are of one instant."""
        meta, slots, prompts = self.keys
        pipeline = self.client.pipeline(transaction=True)
        pipeline.hmget(meta, "dispatch_index", "loader_state", "loader_revision")
        pipeline.hgetall(slots)
        pipeline.hgetall(prompts)
        [cursor, loader, revision], records, references = await pipeline.execute()
        batches = Counter(int(record.split(b" ")[5]) for record in records.values())
        admitted = int(cursor) + 1
        self.rounds += 1
        self.seen.add(admitted)
        assert dict.fromkeys(range(admitted), BATCH) == dict(batches)
        assert admitted * BATCH == int(loader or b"0")
        assert admitted == int(revision)
        assert sorted(b"%d" % at for at in range(admitted * BATCH)) == sorted(references.values())
        assert records.keys() == references.keys()


async def dispatch(store: ReplayStore, sampler: InOrderSampler, *, spoil: int) -> bool:
    """Dispatch the next batch in one cut; return whether it was applied.

    The loader state says how many prompts were dispatched. Some cuts end in an error or are
    cancelled after everything was recorded, and must leave nothing.
    """
    try:
        with anyio.CancelScope() as scope:
            async with store.mutation() as cut:
                step = sampler.commit_admission(cut)
                position = int(cut.loader_state or b"0")
                for at in range(BATCH):
                    cut.reserve(0, target_step=step, prompt_ref=b"%d" % (position + at))
                cut.set_loader_state(b"%d" % (position + BATCH))
                if spoil == 1:
                    raise ZeroDivisionError
                if spoil == 2:
                    scope.cancel()
                    await anyio.sleep_forever()
    except (AdmissionConflict, ZeroDivisionError):
        return False
    return not scope.cancelled_caught


async def compete(runs: Runs, url: str, *, batches: int) -> Reader:
    """Let writers dispatch that many batches beside a reader at full speed."""
    capacity = BATCH * (batches + WRITERS)
    reader = Reader(runs, runs.client)
    done = anyio.Event()
    left = batches
    lost = 0

    async def read() -> None:
        while not done.is_set():
            await reader.look()

    async def write(number: int) -> None:
        nonlocal left, lost
        async with redis_replay.open_store(
            url, run=runs.name, capacity=capacity, group_size=2
        ) as store:
            sampler, turn = in_order(store), number
            await sampler.flush()
            while left > 0:
                turn += 1
                if await dispatch(store, sampler, spoil=turn % 7):
                    left -= 1
                else:
                    lost += 1

    async with runs.open(capacity=capacity) as store:
        sampler = in_order(store)
        sampler.set_gate_window(OPEN_GATE)
        await sampler.flush()
        async with anyio.create_task_group() as readers:
            readers.start_soon(read)
            async with anyio.create_task_group() as writers:
                for number in range(WRITERS):
                    writers.start_soon(write, number)
            done.set()
        await reader.look()
        assert batches <= max(reader.seen) <= batches + WRITERS
        assert lost > 0, "no cut was ever refused, so nothing competed"
        assert BATCH * max(reader.seen) == await store.buffer.size()
    return reader


@pytest.mark.parametrize("client", ["real"], indirect=True)
async def test_a_reader_at_full_speed_sees_whole_batches_only(runs: Runs, real_server: str) -> None:
    reader = await compete(runs, real_server, batches=600)
    assert reader.rounds >= 200
    assert len(reader.seen) >= 50


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["real"], indirect=True)
async def test_a_reader_sees_whole_batches_only_for_thousands_of_rounds(
    runs: Runs, real_server: str
) -> None:
    rounds = 0
    while rounds < 2_000:  # on a fresh run each time, for a look takes longer the more there is
        run = Runs(runs.client)
        rounds += (await compete(run, real_server, batches=600)).rounds
        await run.check()


async def test_a_cut_that_expired_changes_nothing_wherever_it_is_used(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = in_order(store)
        await sampler.flush()
        async with store.mutation() as applied:
            sampler.commit_admission(applied)
            applied.reserve(0, target_step=0)
        failed = store.mutation()
        assert not await spoilt(failed, sampler)
        await attached(store)
        async with nothing_changed(runs):
            for cut in (applied, failed):
                for use in (
                    lambda cut=cut: sampler.commit_admission(cut),
                    lambda cut=cut: cut.reserve(0),
                    lambda cut=cut: cut.set_loader_state(b"x"),
                ):
                    with pytest.raises(RuntimeError, match="no longer active") as expired:
                        use()
                    assert isinstance(expired.value, CutExpired)
        assert 0 == (await store.stats()).dispatch_index


async def spoilt(cut: Any, sampler: InOrderSampler) -> bool:
    """Record in a cut, then fail in its block; return whether anything was applied."""
    try:
        async with cut:
            sampler.commit_admission(cut)
            cut.reserve(0)
            raise ZeroDivisionError
    except ZeroDivisionError:
        return bool(cut.reservations)


@pytest.mark.parametrize("spoil", [1, 2])
async def test_an_exception_or_a_cancellation_in_the_block_leaves_nothing(
    runs: Runs, spoil: int
) -> None:
    async with runs.open() as store:
        sampler = in_order(store)
        await sampler.flush()
        await attached(store)
        async with nothing_changed(runs):
            assert not await dispatch(store, sampler, spoil=spoil)
        assert await dispatch(store, sampler, spoil=0)
        await Reader(runs, runs.client).look()


async def test_a_conflict_leaves_nothing_of_the_losing_cut(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        mine, theirs = in_order(store), in_order(other)
        await mine.flush()
        await theirs.flush()
        live = await commit_ready(store, 0, target_step=0)
        await store.buffer.remove_group(live)
        await attached(store, other)
        reader = Reader(runs, runs.client)

        async def overtaken() -> None:
            async with store.mutation() as cut:
                mine.commit_admission(cut)
                cut.reserve(0, target_step=0, prompt_ref=b"stolen")
                assert await dispatch(other, theirs, spoil=0)

        with pytest.raises(AdmissionConflict):
            await overtaken()
        await reader.look()
        assert {1} == reader.seen


async def test_a_refused_reservation_takes_cursor_and_loader_back_with_it(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = in_order(store)
        await sampler.flush()
        assert await dispatch(store, sampler, spoil=0)
        [taken, *_] = [slot.group_id for slot in await store.buffer.slots()]

        async def repeated() -> None:
            async with store.mutation() as cut:
                sampler.commit_admission(cut)
                cut.set_loader_state(b"6")
                cut.reserve(0, target_step=1, group_id=taken)

        async with nothing_changed(runs):
            with pytest.raises(DuplicateGroup):
                await repeated()
        await Reader(runs, runs.client).look()


@pytest.mark.parametrize("form", ["admit", "cut"])
async def test_admit_and_the_cut_give_the_same_stamps_and_the_same_cursor(
    runs: Runs, form: str
) -> None:
    async with runs.open() as store:
        sampler = in_order(store)
        await sampler.flush()
        for expected in range(2):
            if form == "admit":
                stamp = await sampler.admit(trainer_version_fn=lambda: 0)
                await store.buffer.reserve(0, target_step=stamp)
            else:
                await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
                async with store.mutation() as cut:
                    stamp = sampler.commit_admission(cut)
                    cut.reserve(0, target_step=stamp)
            assert (expected, expected) == (stamp, sampler.dispatch_index)
        assert [0, 1] == [slot.target_step for slot in await store.buffer.slots()]
        assert {} == await runs.client.hgetall(control_key(runs, Key.ADMISSIONS))

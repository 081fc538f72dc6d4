"""The mutation cut: cursor, reservations and loader position move together or not at all."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import (
    GroupState,
    InOrderSampler,
    InOrderSamplerConfig,
    WindowedSamplerConfig,
    create_sampler,
)
from redis_replay.errors import (
    AdmissionConflict,
    BufferFull,
    CutExpired,
    DuplicateGroup,
    StoreClosed,
)
from redis_replay.types import MAX_GROUPS_PER_CALL
from tests.contract.keyspace import attached, nothing_changed, snapshot
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


def in_order(place: Any, *, lookahead: int = 2) -> InOrderSampler:
    """Return an ``in_order`` sampler on a store or session."""
    sampler = create_sampler(place.buffer, InOrderSamplerConfig(max_lookahead_versions=lookahead))
    assert isinstance(sampler, InOrderSampler)
    return sampler


async def loader_of(store: Any) -> bytes | None:
    """Return the loader state as a new cut sees it."""
    async with store.mutation() as cut:
        state: bytes | None = cut.loader_state
    return state


async def test_all_that_is_recorded_becomes_visible_at_the_end_of_the_block(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        sampler = in_order(store)
        await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
        async with store.mutation() as cut:
            assert (-1, None, ()) == (cut.dispatch_index, cut.loader_state, cut.reservations)
            assert 0 == sampler.commit_admission(cut)
            ids = [cut.reserve(0, target_step=0, prompt_ref=b"%d" % at) for at in range(3)]
            cut.set_loader_state(b"position 3")
            assert 0 == await other.buffer.size()
            assert -1 == (await other.stats()).dispatch_index
        assert ids == [reservation.group_id for reservation in cut.reservations]
        slots = await other.buffer.slots()
        assert ids == [slot.group_id for slot in slots]
        assert [made.fence for made in cut.reservations] == [slot.fence for slot in slots]
        assert 0 == (await other.stats()).dispatch_index
        assert b"position 3" == await loader_of(other)
        await store.buffer.commit(ids[0], rows(), start_weight_version=0, end_weight_version=0)


async def test_a_cut_that_records_nothing_writes_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        await attached(store)
        async with nothing_changed(runs):
            async with store.mutation() as cut:
                pass
            assert () == cut.reservations


async def test_an_error_in_the_block_leaves_nothing_and_comes_out_as_it_is(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = in_order(store)
        await sampler.flush()
        await attached(store)
        cut = store.mutation()

        async def fail_in_the_middle() -> None:
            async with cut:
                sampler.commit_admission(cut)
                cut.reserve(0, target_step=0)
                cut.set_loader_state(b"x")
                _ = 1 // 0

        async with nothing_changed(runs):
            with pytest.raises(ZeroDivisionError):
                await fail_in_the_middle()
        with pytest.raises(CutExpired):
            cut.reserve(0)


async def test_a_cut_records_only_while_it_is_live(runs: Runs) -> None:
    async with runs.open() as store:
        sampler, ungated = in_order(store), create_sampler(store.buffer, WindowedSamplerConfig())
        fresh = store.mutation()
        async with store.mutation() as used:
            pass
        await attached(store)
        async with nothing_changed(runs):
            for cut in (fresh, used):
                for record in (
                    lambda cut=cut: cut.reserve(0),
                    lambda cut=cut: cut.set_loader_state(b""),
                    lambda cut=cut: cut.record_admission(seen_version=0),
                    lambda cut=cut: sampler.commit_admission(cut),
                    lambda cut=cut: ungated.commit_admission(cut),  # type: ignore[attr-defined]
                ):
                    with pytest.raises(RuntimeError, match="no longer active") as expired:
                        record()
                    assert CutExpired is type(expired.value)
            with pytest.raises(CutExpired):
                async with used:
                    pass
        with pytest.raises(CutExpired, match="never entered"):
            _ = fresh.dispatch_index


async def test_a_cut_records_one_admission(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = in_order(store)
        await sampler.flush()
        async with store.mutation() as cut:
            assert 0 == sampler.commit_admission(cut)
            with pytest.raises(ValueError, match="one admission"):
                sampler.commit_admission(cut)
        assert 0 == (await store.stats()).dispatch_index


async def test_an_ungated_policy_records_no_admission(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = create_sampler(store.buffer, WindowedSamplerConfig())
        async with store.mutation() as cut:
            assert sampler.commit_admission(cut) is None  # type: ignore[attr-defined]
            cut.reserve(0)
        assert (-1, 1) == ((await store.stats()).dispatch_index, await store.buffer.size())


async def test_of_two_cuts_for_one_batch_one_is_applied_and_the_other_not_at_all(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other:
        mine, theirs = in_order(store), in_order(other)
        await mine.flush()
        await theirs.flush()
        await attached(other)
        lost = other.mutation()

        async def overtaken() -> None:
            async with lost:
                assert 0 == theirs.commit_admission(lost)
                lost.reserve(0, group_id="theirs", target_step=0)
                lost.set_loader_state(b"theirs")
                async with store.mutation() as won:
                    assert 0 == mine.commit_admission(won)
                    won.reserve(0, group_id="mine", target_step=0)
                    won.set_loader_state(b"mine")
                applied.update(await snapshot(runs))

        applied: dict[str, Any] = {}
        with pytest.raises(AdmissionConflict, match=r"cursor moved .*now 0"):
            await overtaken()
        assert applied == await snapshot(runs)
        assert () == lost.reservations
        async with other.mutation() as next_cut:
            assert 1 == theirs.commit_admission(next_cut)
            next_cut.reserve(0, target_step=1)
        assert [0, 1] == [slot.target_step for slot in await store.buffer.slots()]


async def test_a_gate_that_closed_under_the_cut_is_a_conflict(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = in_order(store, lookahead=1)
        assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)

        async def shut_out() -> None:
            async with store.mutation() as cut:
                assert 1 == sampler.commit_admission(cut)
                cut.reserve(0, target_step=1)
                sampler.set_gate_window(0)
                await sampler.flush()
                applied.update(await snapshot(runs))

        applied: dict[str, Any] = {}
        with pytest.raises(AdmissionConflict, match=r"gate moved .*now 0"):
            await shut_out()
        assert applied == await snapshot(runs)


async def test_two_loaders_never_overwrite_each_others_position(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        await attached(other)

        async def overtaken() -> None:
            async with other.mutation() as lost:
                lost.set_loader_state(b"theirs")
                lost.reserve(0)
                async with store.mutation() as won:
                    won.set_loader_state(b"mine")
                applied.update(await snapshot(runs))

        applied: dict[str, Any] = {}
        with pytest.raises(AdmissionConflict, match=r"loader moved .*now 1"):
            await overtaken()
        assert applied == await snapshot(runs)
        assert b"mine" == await loader_of(store)


async def test_cursor_and_loader_are_compared_only_by_cuts_that_use_them(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        sampler = in_order(store)
        await sampler.flush()
        async with other.mutation() as cut:
            cut.reserve(0, group_id="plain")
            async with store.mutation() as moved:
                sampler.commit_admission(moved)
                moved.set_loader_state(b"1")
        assert ["plain"] == [slot.group_id for slot in await store.buffer.slots()]


async def test_an_empty_loader_state_is_a_state(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.mutation() as cut:
            cut.set_loader_state(b"")
        assert b"" == await loader_of(store)
        async with store.mutation() as cut:
            with pytest.raises(TypeError, match="bytes"):
                cut.set_loader_state("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["duplicate", "full", "bytes"])
async def test_a_reservation_that_cannot_be_made_undoes_the_admission_too(
    runs: Runs, fault: str
) -> None:
    options = {"full": {"capacity": 2}, "bytes": {"max_payload_bytes": 1}}.get(fault, {})
    async with runs.open(**options) as store:
        sampler = in_order(store)
        await sampler.flush()
        live = await commit_ready(store, 0)

        async def dispatch() -> None:
            async with store.mutation() as cut:
                sampler.commit_admission(cut)
                cut.set_loader_state(b"x")
                cut.reserve(0, group_id="new")
                cut.reserve(0, group_id=live if fault == "duplicate" else None)

        async with nothing_changed(runs):
            with pytest.raises(DuplicateGroup if fault == "duplicate" else BufferFull) as refused:
                await dispatch()
        if isinstance(refused.value, BufferFull):
            assert "2 more" in str(refused.value) or fault == "bytes"
            assert 1 == refused.value.occupancy or fault == "bytes"
        assert -1 == (await store.stats()).dispatch_index


async def test_an_id_stands_once_in_a_cut(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.mutation() as cut:
            cut.reserve(0, group_id="g")
            with pytest.raises(DuplicateGroup, match="twice in this cut") as refused:
                cut.reserve(1, group_id="g")
            with pytest.raises(ValueError, match="weight_version"):
                cut.reserve(-1)
        assert "g" == refused.value.group_id
        [slot] = await store.buffer.slots()
        assert (0, GroupState.RESERVED) == (slot.start_weight_version, slot.state)


async def test_a_cut_of_a_session_reserves_for_that_session(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="host") as host:
        async with host.mutation() as cut:
            cut.reserve(0, group_id="g")
        [slot] = await store.buffer.slots()
        assert "host" == slot.owner
        await host.buffer.commit("g", rows(), start_weight_version=0, end_weight_version=0)


async def test_a_cut_may_be_used_from_a_task_that_is_not_its_openers(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.mutation() as cut, anyio.create_task_group() as tasks:

            async def record() -> None:
                cut.reserve(0)

            tasks.start_soon(record)
            tasks.start_soon(record)
        assert 2 == len(cut.reservations)


async def test_a_cut_of_a_closed_store_says_so(runs: Runs) -> None:
    async with runs.open() as store:
        late = store.mutation()
    with pytest.raises(StoreClosed):
        store.mutation()
    with pytest.raises(StoreClosed):
        await late.__aenter__()


async def test_a_cut_takes_as_many_reservations_as_one_script_makes(runs: Runs) -> None:
    async with runs.open(capacity=2 * MAX_GROUPS_PER_CALL) as store:
        async with store.mutation() as cut:
            for _ in range(MAX_GROUPS_PER_CALL):
                cut.reserve(0, target_step=0, prompt_ref=b"prompt")
            with pytest.raises(ValueError, match=f"at most {MAX_GROUPS_PER_CALL} groups"):
                cut.reserve(0)
        assert MAX_GROUPS_PER_CALL == len(cut.reservations) == await store.buffer.size()

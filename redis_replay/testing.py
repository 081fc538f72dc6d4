"""A conformance suite for samplers, to derive from in a test file.

::

    class TestMine(SamplerConformance):
        config = {"name": "custom", "target": "my_package.sampling:MySampler"}

pytest then runs every check on fakeredis and on a real private server; the audit runs after each.
Needs pytest, fakeredis and a server binary (``redis-replay[dev]``).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

import anyio
import fakeredis
import pytest

from redis_replay.audit import AuditReport
from redis_replay.embedded import open_embedded
from redis_replay.errors import UnknownGroup
from redis_replay.opening import open_store
from redis_replay.protocols import PromptGroupSampler
from redis_replay.samplers.factory import (
    create_sampler,
    sampler_supports_buffer_checkpoint,
    sampler_supports_training_claims,
)
from redis_replay.store import ReplayStore

CAPACITY = 64


class SamplerConformance:
    """What every sampler must do, whatever it prefers. Set ``config`` in a subclass.

    Attributes:
        config: The sampler's configuration, as `create_sampler` takes it.
    """

    config: ClassVar[Mapping[str, Any]]
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop the store runs on."""
        return "asyncio"

    @pytest.fixture(params=["fake", "real"])
    async def store(self, request: pytest.FixtureRequest) -> AsyncIterator[ReplayStore]:
        """A store of a fresh run on either backend, audited after the test."""
        run = f"conformance-{secrets.token_hex(4)}"
        settings: dict[str, Any] = {"run": run, "group_size": 2, "groups_per_step": 2}
        settings["capacity"] = CAPACITY
        if request.param == "fake":
            client = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())
            async with open_store(client=client, **settings) as opened:
                yield opened
                self.require_clean(await opened.audit())
        else:
            lease = await anyio.to_thread.run_sync(lambda: open_embedded(None, appendfsync="no"))
            try:
                async with open_store(lease.url, **settings) as opened:
                    yield opened
                    self.require_clean(await opened.audit())
            finally:
                await anyio.to_thread.run_sync(lease.close)

    @staticmethod
    def require_clean(report: AuditReport) -> None:
        """Fail with every violated invariant."""
        assert () == report.violations

    def sampler(self, buffer: Any) -> PromptGroupSampler:
        """Return the sampler under test on a buffer."""
        return create_sampler(buffer, self.config)

    async def make_ready(self, store: ReplayStore, groups: int, *, weight: int = 0) -> list[str]:
        """Reserve and commit groups, stamped for step ``weight`` where the sampler stamps."""
        made: list[str] = []
        for at in range(groups):
            slot = await store.buffer.reserve(weight, target_step=weight)
            await store.buffer.commit(
                slot.group_id,
                [{"reward": 0.0}, {"reward": float(at)}],
                start_weight_version=weight,
                end_weight_version=weight,
            )
            made.append(slot.group_id)
        return made

    async def test_construction_touches_nothing(self, store: ReplayStore) -> None:
        """A sampler is built without a single write."""
        before = await store.stats()
        self.sampler(store.buffer)
        assert before == await store.stats()

    def test_capabilities_are_plain_booleans(self) -> None:
        """What the class is trusted with can be asked without building it."""
        assert isinstance(sampler_supports_buffer_checkpoint(self.config), bool)
        assert isinstance(sampler_supports_training_claims(self.config), bool)

    async def test_an_empty_buffer_selects_nothing(self, store: ReplayStore) -> None:
        """``(None, 0)``, never an empty meta."""
        selected = await self.sampler(store.buffer).select(
            current_train_weight=0, min_prompt_groups=1, max_prompt_groups=4
        )
        assert (None, 0) == selected

    @pytest.mark.parametrize(("least", "most"), [(0, 4), (-1, 4), (3, 2)])
    async def test_impossible_bounds_are_refused_before_anything_is_touched(
        self, store: ReplayStore, least: int, most: int
    ) -> None:
        """``ValueError``, and all groups stay ready."""
        await self.make_ready(store, 3)
        with pytest.raises(ValueError):  # noqa: PT011 - the message is the sampler's own
            await self.sampler(store.buffer).select(
                current_train_weight=0, min_prompt_groups=least, max_prompt_groups=most
            )
        assert 3 == (await store.stats()).ready

    async def test_selection_keeps_its_bounds_and_owns_what_it_returns(
        self, store: ReplayStore
    ) -> None:
        """At most the maximum, each group once, and none of them is ready any more."""
        made = await self.make_ready(store, 5)
        meta, groups = await self.sampler(store.buffer).select(
            current_train_weight=0, min_prompt_groups=1, max_prompt_groups=3
        )
        assert meta is not None
        chosen = meta.extra_info["group_ids"]
        assert 1 <= groups <= 3
        assert groups == len(chosen) == len(set(chosen))
        assert set(chosen) <= set(made)
        left = {slot.group_id for slot in await store.buffer.slots() if slot.state == "ready"}
        assert not left & set(chosen)

    async def test_selected_groups_are_claimed_or_gone_as_the_class_declares(
        self, store: ReplayStore
    ) -> None:
        """With training claims they are held until the step commits, without they have ended.

        Either way their rows can be read until then, and are freed after it.
        """
        async with store.trainer(owner="conformance") as trainer:
            made = await self.make_ready(store, 3)
            meta, groups = await self.sampler(trainer.buffer).select(
                current_train_weight=0, min_prompt_groups=1, max_prompt_groups=2
            )
            assert meta is not None
            stats, keeps = await store.stats(), sampler_supports_training_claims(self.config)
            expected = (groups, 0) if keeps else (0, groups)
            assert expected == (stats.claimed, stats.trained)
            await store.collect_garbage()
            assert meta.size == len(await trainer.samples.get_samples(meta))
            await trainer.commit_step(0)
            stats = await store.stats()
            assert (0, groups, len(made) - groups) == (stats.claimed, stats.trained, stats.ready)
            with pytest.raises(UnknownGroup):
                await trainer.samples.get_samples(meta)

    async def test_below_the_minimum_nothing_changes(self, store: ReplayStore) -> None:
        """``(None, 0)`` and every group still ready."""
        await self.make_ready(store, 2)
        selected = await self.sampler(store.buffer).select(
            current_train_weight=0, min_prompt_groups=3, max_prompt_groups=4
        )
        assert ((None, 0), 2) == (selected, (await store.stats()).ready)

    async def test_reserved_groups_are_neither_selected_nor_evicted(
        self, store: ReplayStore
    ) -> None:
        """An unfinished rollout is left alone, however old it is."""
        slot = await store.buffer.reserve(0, target_step=0)
        sampler = self.sampler(store.buffer)
        selected = await sampler.select(
            current_train_weight=9, min_prompt_groups=1, max_prompt_groups=4
        )
        await sampler.evict(current_train_weight=9)
        states = {view.group_id: view.state.value for view in await store.buffer.slots()}
        assert ((None, 0), {slot.group_id: "reserved"}) == (selected, states)

    async def test_claimed_groups_survive_eviction(self, store: ReplayStore) -> None:
        """What a trainer holds is not dropped under it."""
        made = await self.make_ready(store, 2)
        await store.buffer.claim_for_training(made)
        await self.sampler(store.buffer).evict(current_train_weight=99)
        assert 2 == (await store.stats()).claimed

    async def test_eviction_counts_what_it_drops(self, store: ReplayStore) -> None:
        """The number returned is the number of groups that went."""
        await self.make_ready(store, 3)
        dropped = await self.sampler(store.buffer).evict(current_train_weight=99)
        stats = await store.stats()
        assert (dropped, 3 - dropped) == (stats.evicted, stats.ready)

    async def test_two_trainers_never_share_a_group(self, store: ReplayStore) -> None:
        """Selections at the same time are disjoint."""
        await self.make_ready(store, 8)
        chosen: list[str] = []

        async def train(owner: str) -> None:
            async with store.trainer(owner=owner) as trainer:
                meta, _ = await self.sampler(trainer.buffer).select(
                    current_train_weight=0, min_prompt_groups=1, max_prompt_groups=4
                )
                chosen.extend(meta.extra_info["group_ids"] if meta else [])
                barrier.set() if len(chosen) == 8 else None
                with anyio.move_on_after(2):
                    await barrier.wait()

        barrier = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(train, "first")
            tasks.start_soon(train, "second")
        assert len(chosen) == len(set(chosen))

    async def test_admission_is_answered_and_moves_the_cursor_at_most_by_one(
        self, store: ReplayStore
    ) -> None:
        """A stamp is a step or ``None``."""
        sampler = self.sampler(store.buffer)
        before = sampler.dispatch_index
        with anyio.fail_after(5):
            stamp = await sampler.admit(trainer_version_fn=lambda: 0)
        assert stamp is None or stamp >= 0
        assert sampler.dispatch_index - before in (0, 1)

    async def test_a_cancelled_admission_loses_nothing(self, store: ReplayStore) -> None:
        """After cancelled calls the cursor is where the delivered ones left it."""
        sampler = self.sampler(store.buffer)
        for _ in range(5):
            with anyio.move_on_after(0.001):
                await sampler.admit(trainer_version_fn=lambda: 0)
        with anyio.move_on_after(1):
            await sampler.admit(trainer_version_fn=lambda: 9)
        cursor = (await store.stats()).dispatch_index
        assert cursor == sampler.dispatch_index
        assert -1 <= cursor <= 6

    async def test_impossible_seeds_are_refused(self, store: ReplayStore) -> None:
        """A negative version and a cursor below -1."""
        sampler = self.sampler(store.buffer)
        with pytest.raises(ValueError, match="resume_from_trainer_version"):
            sampler.set_dispatch_index(-1)
        with pytest.raises(ValueError, match="dispatch_index"):
            sampler.restore_dispatch_index(-2)

"""Dynamic sampling on the store: a group without signal is ended, not stored, and may be replaced.

A rollout host commits through a `GroupFilter`. Whether the group carries signal is decided here
from its own rewards; what follows is one script: either the group becomes ready, or it ends as
filtered with its rewards tallied, its place free and, where asked, a replacement reserved for the
same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from redis_replay._redis.scripts import Drop
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.commits import require_group_size
from redis_replay.dynamic_sampling import (
    PromptGroupRecord,
    participating_rewards,
    rewards_carry_no_signal,
)
from redis_replay.errors import ConfigurationError
from redis_replay.reservations import as_columns, draft_reservation, validate_group_id
from redis_replay.rewards import reward_as_float, sum_of_rewards
from redis_replay.selection import validate_version
from redis_replay.types import Reservation


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """How groups are filtered.

    Attributes:
        masked_reward_policy: ``"exclude"`` leaves masked completions out of the vote, ``"include"``
            and ``None`` let all vote (`participating_rewards`).
        overlong_filtering: Whether truncated completions are masked in the loss.
        max_replacements: How often one place of a batch may be given to a replacement.
    """

    masked_reward_policy: str | None = "exclude"
    overlong_filtering: bool = False
    max_replacements: int = 3

    def __post_init__(self) -> None:
        validate_version("max_replacements", self.max_replacements)


@dataclass(frozen=True, slots=True)
class FilterOutcome:
    """What became of a group.

    Attributes:
        kept: Whether it is ready; else it ended.
        replacement: The reservation to generate for instead, ``None`` when there is none.
    """

    kept: bool
    replacement: Reservation | None = None


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a replacement is reserved with, should one be needed.

    Attributes:
        weight_version: Version of the weights that its rollout would begin with.
        prompt_ref: Reference of its prompt.
        group_id: Its id; a fresh one by default.
    """

    weight_version: int
    prompt_ref: bytes | None = None
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Commits of one session under one filter: ``rollout.filter(DynamicSampling(...))``."""

    buffer: RedisReplayBuffer
    settings: DynamicSampling

    def __post_init__(self) -> None:
        if self.buffer.session.link.run.settings.group_size == 1:
            raise ConfigurationError(
                "dynamic sampling needs a group size of at least 2: a single reward never carries "
                "signal, so every group would be dropped. Commit without the filter instead."
            )

    async def commit(
        self,
        group_id: str,
        record: PromptGroupRecord,
        *,
        start_weight_version: int,
        end_weight_version: int,
        fence: int | None = None,
        replacement: Replacement | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> FilterOutcome:
        """Store a group that carries signal, else end it as filtered.

        One atomic script either way; the rewards are tallied in it, so a repeated call counts once.

        Args:
            group_id: A group that this session reserved.
            record: The finished group; `rows_of_record` says how it is stored.
            start_weight_version: As `RedisReplayBuffer.commit`.
            end_weight_version: As `RedisReplayBuffer.commit`.
            fence: The reservation's fence, when it was made through another object.
            replacement: Reserve this for the same step if the group is dropped and the budget
                allows.
            tags: One dictionary of small facts per sample.

        Raises:
            ValueError: a wrong number of completions, or a reward that is not finite; nothing is
                written and the slot stays reserved.
            TypeError: a reward is not one number, or a value cannot be stored.
            SlotError: the group is not this session's to commit.
        """
        validate_group_id(group_id)
        validate_version("start_weight_version", start_weight_version)
        validate_version("end_weight_version", end_weight_version, least=start_weight_version)
        require_group_size(self.buffer.session, group_id, len(record.completions))
        rewards = [
            reward_as_float(completion.reward, where=f"group {group_id!r}, row {row}: reward")
            for row, completion in enumerate(record.completions)
        ]
        voting = participating_rewards(
            record,
            masked_reward_policy=self.settings.masked_reward_policy,
            overlong_filtering=self.settings.overlong_filtering,
        )
        if not rewards_carry_no_signal(voting):
            await self.buffer.commit(
                group_id,
                record,
                start_weight_version=start_weight_version,
                end_weight_version=end_weight_version,
                fence=fence,
                tags=tags,
                zero_variance=False,
            )
            return FilterOutcome(kept=True)
        return await self._drop(
            group_id,
            ending="filtered",
            reason="no_signal",
            rewards=rewards,
            fence=fence,
            replacement=replacement,
        )

    async def fail(
        self,
        group_id: str,
        *,
        reason: str = "failed",
        fence: int | None = None,
        replacement: Replacement | None = None,
    ) -> FilterOutcome:
        """End a group whose rollout failed for good, and reserve a replacement where asked.

        Atomic. Nothing is tallied: the group was never generated.

        Raises:
            SlotError: the group is not this session's to end.
        """
        return await self._drop(
            group_id,
            ending="aborted",
            reason=reason,
            rewards=[],
            fence=fence,
            replacement=replacement,
        )

    async def _drop(
        self,
        group_id: str,
        *,
        ending: str,
        reason: str,
        rewards: Sequence[float],
        fence: int | None,
        replacement: Replacement | None,
    ) -> FilterOutcome:
        drafts = []
        if replacement is not None:
            drafts.append(
                draft_reservation(
                    replacement.weight_version,
                    target_step=None,
                    group_id=replacement.group_id,
                    prompt_ref=replacement.prompt_ref,
                )
            )
        session = self.buffer.session
        await session.attach()
        columns = as_columns(drafts)
        call = Drop(
            group_id=group_id,
            fence=await self.buffer.commits.fence_of(group_id) if fence is None else fence,
            ending=ending,
            reason=reason,
            samples=len(rewards),
            reward_sum=repr(sum_of_rewards(rewards)),
            zero_variance=1,
            budget=self.settings.max_replacements,
            group_ids=columns.group_ids,
            weights=columns.weights,
            prompt_refs=columns.prompt_refs,
        )
        dropped = partial(self._run_drop, call, drafts[0] if drafts else None)
        return await session.link.tasks.finish(dropped, unclaimed=self._keep_undelivered)

    async def _run_drop(self, call: Drop, draft: Reservation | None) -> FilterOutcome:
        with self.buffer.holdings.asking(*call.group_ids):
            return self._received(await self.buffer.session.call_now(call), call, draft)

    def _received(
        self, reply: tuple[int, int, int | None] | None, call: Drop, draft: Reservation | None
    ) -> FilterOutcome:
        self.buffer.holdings.reservations.pop(call.group_id, None)
        self.buffer.session.link.tasks.start(self.buffer.session.link.collect)
        if reply is None or draft is None:
            return FilterOutcome(kept=False)
        fence, number, target_step = reply
        made = replace(draft, fence=fence, replacement_index=number, target_step=target_step)
        return FilterOutcome(kept=False, replacement=self.buffer.holdings.hold(made))

    async def _keep_undelivered(self, outcome: FilterOutcome) -> None:
        """Leave a replacement whose caller was cancelled for the session's next look."""
        if outcome.replacement is not None:
            await self.buffer.holdings.keep([outcome.replacement])

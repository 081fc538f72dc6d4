"""The buffer as a plain Python model: what every verb does, with no server and nothing to race.

Written from the decisions D1 to D13, D17 to D22 and D51, not from the scripts. A refusal is the
name of the error class that a caller must see. Attempts are told apart by tokens drawn from one
counter; the numbers that a store draws need not be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from redis_replay.selection import Selection
from tests.property.reserving import Reserving
from tests.property.slots import Group, Member, Place, Refused, Selected, require_distinct


@dataclass(kw_only=True)
class BufferModel(Reserving):
    """One run.

    Attributes:
        most_held: Groups that a session may have claimed, and as many selected for good.
    """

    most_held: int
    last_step: tuple[int, tuple[int, ...], tuple[int, tuple[str, ...]]] | None = None

    def publish(self, version: int) -> None:
        if version > self.version:
            self._raise_version(version)

    def _raise_version(self, version: int) -> None:
        since, self.version = self.version, version
        self.accounts.pass_to(version, since=since)

    # Commit, and the ends of groups that are not trained

    def commit(
        self,
        member: Member,
        group_id: str,
        *,
        fence: int,
        start: int,
        end: int,
        payload_bytes: int,
        content: int,
        rewards: list[float],
    ) -> None:
        self.require(member)
        group = self.live(group_id)
        if group.committed_fence == fence:
            return
        if group.fence != fence or group.holder != member.epoch:
            raise Refused("StaleAttempt")
        if group.state != "reserved":
            raise Refused("WrongState")
        if start < group.start or (start > group.start and group.attempt == 1):
            raise Refused("ValueError")
        group.state, group.holder, group.committed_fence = "ready", None, fence
        group.start, group.end = start, end
        group.payload_bytes, group.content = payload_bytes, content
        self._tally(group, rewards, zero_variance=False)

    def _tally(self, group: Group, rewards: list[float], *, zero_variance: bool) -> None:
        self.accounts.generated(
            group.target, rewards, replacement=group.replacement, zero_variance=zero_variance
        )

    def drain(self, member: Member, step: int) -> dict[str, float]:
        self.require(member)
        return self.accounts.drain(step)

    def drop(
        self,
        member: Member,
        group_id: str,
        *,
        fence: int,
        rewards: list[float],
        budget: int,
        place: Place | None,
    ) -> Group | None:
        """End a group without signal, or with no rewards one that failed; replace it if asked."""
        self.require(member)
        group = self.live(group_id)
        if group.state != "reserved":
            raise Refused("WrongState")
        if group.fence != fence or group.holder != member.epoch:
            raise Refused("StaleAttempt")
        replaced = place is not None and group.replacement < budget
        if replaced and place is not None and place.group_id in self.groups:
            raise Refused("DuplicateGroup")
        self.retire([group], *(("filtered", "no_signal") if rewards else ("aborted", "failed")))
        if rewards:
            self._tally(group, rewards, zero_variance=True)
        if place is None or not replaced:
            return None
        place = replace(place, target=group.target, replacement=group.replacement + 1)
        self.place(member, place, fence=self.draw(), batch=group.dispatch)
        return self.groups[place.group_id]

    def abort(self, member: Member, group_id: str, *, fence: int, reason: str) -> None:
        self.require(member)
        group = self.live(group_id)
        if group.state != "reserved":
            raise Refused("WrongState")
        if group.fence != fence:
            raise Refused("StaleAttempt")
        self.retire([group], "aborted", reason)

    def remove(self, member: Member, group_ids: Sequence[str], *, reason: str) -> int:
        require_distinct(group_ids)
        self.require(member)
        groups = self.all_in(group_ids, "reserved", "ready", "quarantined")
        self.retire(groups, "removed", reason)
        return len(groups)

    def evict(self, member: Member, *, below: int, by_step: bool) -> int:
        self.require(member)

        def is_stale(group: Group) -> bool:
            number = group.target if by_step else group.start
            return group.state == "ready" and number is not None and number < below

        stale = self.where(is_stale)
        self.retire(stale, "evicted", "stale")
        return len(stale)

    def promote(self, member: Member, *, to_step: int) -> int | None:
        self.require(member)
        if to_step < self.version:
            raise Refused("ValueError")
        lenders = self.where(
            lambda g: g.state == "ready" and g.target is not None and g.target > to_step
        )
        if not lenders:
            return None
        furthest = max(group.target or 0 for group in lenders)
        next(group for group in lenders if group.target == furthest).target = to_step
        self.accounts.credit(to_step, "borrowed", version=self.version)
        self.accounts.credit(furthest, "lent", version=self.version)
        return furthest

    # Training

    def select(self, member: Member, wanted: Selection) -> list[str]:
        self.require(member)
        chosen = self._chosen(wanted)
        return self._claim(member, chosen) if chosen else []

    def select_for_good(self, member: Member, wanted: Selection) -> list[str]:
        self.require(member)
        chosen = self._chosen(wanted)
        return self._end_as_selected(member, chosen) if chosen else []

    def _chosen(self, wanted: Selection) -> list[Group]:
        eligible = self._eligible(wanted.rule.value, wanted.lowest, wanted.highest)
        chosen = eligible[: wanted.max_prompt_groups]
        return chosen if len(chosen) >= wanted.min_prompt_groups else []

    def _eligible(self, rule: str, lowest: int, highest: int) -> list[Group]:
        ready = self.in_state("ready")
        if rule == "step":
            return [group for group in ready if group.target == highest]
        if rule == "arrival":
            return [group for group in ready if group.start <= highest]
        inside = [group for group in ready if lowest <= group.start <= highest]
        if rule == "freshest":
            return sorted(inside, key=lambda g: (-g.start, g.order))
        if rule == "oldest_version":
            waiting = self.in_state("reserved", "ready")
            versions = [g.start for g in waiting if lowest <= g.start <= highest]
            return [group for group in inside if group.start == min(versions)]
        return inside

    def claim_exactly(self, member: Member, group_ids: Sequence[str]) -> list[str]:
        require_distinct(group_ids)
        self.require(member)
        self._require_room(self.owned(member), len(group_ids))
        return self._claim(member, self.all_in(group_ids, "ready"))

    def select_exactly_for_good(self, member: Member, group_ids: Sequence[str]) -> list[str]:
        require_distinct(group_ids)
        self.require(member)
        return self._end_as_selected(member, self.all_in(group_ids, "ready"))

    def _require_room(self, held: Sequence[Group], more: int) -> None:
        if len(held) + more > self.most_held:
            raise Refused("TooManyClaims")

    def _end_as_selected(self, member: Member, groups: list[Group]) -> list[str]:
        """End groups as trained; the session reads their rows until it lets them go or ends."""
        held = [group for taken in member.selections for group in taken.groups]
        self._require_room(held, len(groups))
        taken = Selected(self.draw(), member.epoch, groups)
        self.selections.append(taken)
        member.selections.append(taken)
        self.retire(groups, "trained", "selected")
        self.accounts.train(len(groups))
        return [group.group_id for group in groups]

    def clear(self, member: Member, group_ids: Sequence[str]) -> int:
        """Let go what the session has selected for good; the others are live and are removed."""
        ended = [group_id for group_id in group_ids if group_id in member.selected]
        rest = [group_id for group_id in group_ids if group_id not in ended]
        if rest:
            self.remove(member, rest, reason="cleared")
        self.require(member)
        for taken in member.selections:
            taken.groups = [group for group in taken.groups if group.group_id not in ended]
        member.selections = [taken for taken in member.selections if taken.groups]
        self.selections = [taken for taken in self.selections if taken.groups]
        return len(group_ids)

    def keep(self) -> None:
        """Make a checkpoint, unless what is being trained has left the buffer and would be lost."""
        if self.selections:
            raise Refused("CheckpointError")

    def _claim(self, member: Member, taken: list[Group]) -> list[str]:
        self._require_room(self.owned(member), len(taken))
        batch = self.draw()
        for group in taken:
            group.state, group.fence, group.batch = "claimed", batch, batch
            group.holder = member.epoch
        member.batches.append(batch)
        return [group.group_id for group in taken]

    def write_back(self, member: Member, group_ids: Sequence[str]) -> None:
        _require_claims(member, group_ids)
        self.require(member)
        groups = self.all_in(group_ids, "claimed")
        if any(group.holder != member.epoch for group in groups):
            raise Refused("ClaimMismatch")
        for group in groups:
            group.written = True

    def settle_step(
        self, member: Member, step: int, *, empty: bool, keep: bool
    ) -> tuple[int, tuple[str, ...]]:
        """Return the late reservations aborted and the groups trained.

        Asked to, it keeps a checkpoint; a step that was settled before keeps none any more.
        """
        self.require(member)
        read = [taken.number for taken in member.selections]
        named = (*member.batches, *read)
        if step != self.version:
            if self.last_step is None or self.last_step[:2] != (step, named):
                raise Refused("StepMismatch")
            _forget_batches(member)
            if keep:
                raise Refused("CheckpointMissing")
            return self.last_step[2]
        owned = self.owned(member)
        if not owned and not read and not empty:
            raise Refused("ClaimMismatch")
        if any(group.batch not in named for group in owned):
            raise Refused("ClaimMismatch")
        others = [taken for taken in self.selections if taken.epoch != member.epoch]
        if keep and others:
            raise Refused("CheckpointError")
        late = [g for g in self.in_state("reserved") if g.target is not None and g.target <= step]
        late = late if self.in_order else []
        self.retire(owned, "trained", "trained")
        self.retire(late, "aborted", "stale")
        self.selections = others
        self.accounts.train(len(owned))
        self._raise_version(step + 1)
        answer = (len(late), tuple(group.group_id for group in owned))
        self.last_step = (step, named, answer)
        _forget_batches(member)
        return answer

    def settle_exactly(self, member: Member, group_ids: Sequence[str]) -> None:
        require_distinct(group_ids)
        _require_claims(member, group_ids)
        self.require(member)
        owned = self.owned(member)
        if {group.group_id for group in owned} != set(group_ids):
            raise Refused("ClaimMismatch")
        self.retire(owned, "trained", "trained")
        self.accounts.train(len(owned))
        member.batches.clear()

    def requeue(self, member: Member, group_ids: Sequence[str] | None, *, failed: bool) -> int:
        """Give named claims back, or all of the session's."""
        if group_ids is not None:
            require_distinct(group_ids)
        _require_claims(member, group_ids)
        self.require(member)
        groups = self.owned(member) if group_ids is None else self.all_in(group_ids, "claimed")
        if any(group.holder != member.epoch for group in groups):
            raise Refused("ClaimMismatch")
        fence = self.draw()
        for group in groups:
            group.state, group.holder, group.batch, group.fence = "ready", None, None, fence
            group.written = False
            group.requeues += failed
            if group.requeues > self.max_requeues:
                self.quarantine(group)
        self.count("requeued", len(groups))
        kept = {group.batch for group in self.owned(member)}
        member.batches[:] = [batch for batch in member.batches if batch in kept]
        return len(groups)

    def set_aside(self, member: Member, group_ids: Sequence[str]) -> int:
        """Quarantine ready groups, and claimed ones of the session."""
        require_distinct(group_ids)
        self.require(member)
        named = self.all_in(group_ids, "ready", "claimed", "quarantined")
        if any(group.state == "claimed" and group.holder != member.epoch for group in named):
            raise Refused("ClaimMismatch")
        taken = [group for group in named if group.state != "quarantined"]
        fence = self.draw() if taken else 0
        for group in taken:
            group.holder, group.batch, group.fence, group.written = None, None, fence, False
            self.quarantine(group)
        kept = {group.batch for group in self.owned(member)}
        member.batches[:] = [batch for batch in member.batches if batch in kept]
        return len(taken)

    def transfer(self, member: Member, receiver: str) -> int:
        _require_claims(member, None)
        self.require(member)
        if receiver not in self.owners:
            raise Refused("ClaimError")
        owned, epoch = self.owned(member), self.owners[receiver]
        if epoch != member.epoch:
            received = self.where(lambda g: g.holder == epoch and g.state == "claimed")
            self._require_room(received, len(owned))
        batch = self.draw() if owned else 0
        for group in owned:
            group.batch, group.fence, group.holder = batch, batch, epoch
        member.batches.clear()
        return len(owned)

    def adopt(self, member: Member) -> list[str]:
        self.require(member)
        owned = self.owned(member)
        if owned:
            member.batches[:] = sorted({group.batch or 0 for group in owned})
        return [group.group_id for group in owned]


def _require_claims(member: Member, group_ids: Sequence[str] | None) -> None:
    """Refuse named groups, or all, of which the session has selected some for good."""
    if any(group_ids is None or group_id in group_ids for group_id in member.selected):
        raise Refused("ClaimMismatch")


def _forget_batches(member: Member) -> None:
    member.batches.clear()
    member.selections.clear()

"""The buffer as a plain Python model: what every verb does, with no server and nothing to race.

Written from the decisions D1 to D13 and D17 to D22, not from the scripts. A refusal is the name
of the error class that a caller must see. Attempts are told apart by tokens drawn from one counter;
the numbers that a store draws need not be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.property.slots import Group, Ledger, Member, OpenCut, Place, Refused, require_distinct


@dataclass(kw_only=True)
class BufferModel(Ledger):
    """One run."""

    capacity: int
    max_payload_bytes: int
    in_order: bool
    window: int
    admissions: dict[int, tuple[str, int]] = field(default_factory=dict)
    version: int = 0
    cursor: int = -1
    admitted: bool = False
    loader_revision: int = 0
    last_step: tuple[int, tuple[int, ...], tuple[int, tuple[str, ...]]] | None = None

    # Admission and reservation

    def publish(self, version: int) -> None:
        self.version = max(self.version, version)

    def seed(self, cursor: int, *, exact: bool) -> None:
        if cursor == self.cursor:
            return
        if not self.admitted:
            self.cursor = cursor
        elif exact:
            raise Refused("CursorConflict")

    def _orphan(self) -> int | None:
        """Return the lowest admitted index whose admitter is gone and whose step has not passed."""
        held = self.admissions.items()
        orphans = (i for i, (name, at) in held if self.owners.get(name) != at)
        return min((i for i in orphans if i >= self._first_index), default=None)

    @property
    def _first_index(self) -> int:
        """The lowest index that is still anybody's: stamped batches of passed steps are not."""
        return self.version if self.in_order else 0

    def _keep_open(self, index: int, member: Member) -> None:
        first = self._first_index
        self.admissions = {i: holder for i, holder in self.admissions.items() if i >= first}
        self.admissions[index] = (member.owner, member.epoch)

    @property
    def _is_full_of_bytes(self) -> bool:
        return self.payload_bytes >= self.max_payload_bytes

    def _gate_is_open(self, seen_version: int) -> bool:
        return self.cursor < max(self.version, seen_version) + self.window

    def admit(self, member: Member, *, seen_version: int) -> int | None:
        self.require(member)
        if self._is_full_of_bytes:
            return None
        index = self._orphan()
        if index is None:
            if not self._gate_is_open(seen_version):
                return None
            index = self.cursor = self.cursor + 1
            self.admitted = True
        self._keep_open(index, member)
        return index

    def open_cut(
        self, *, admits: bool, sets_loader: bool, seen_version: int, places: Sequence[Place]
    ) -> OpenCut:
        orphan = self._orphan()
        index = self.cursor + 1 if orphan is None else orphan
        revision = self.loader_revision if sets_loader else None
        return OpenCut(index if admits else None, revision, seen_version, places)

    def apply_cut(self, member: Member, cut: OpenCut) -> None:
        self.require(member)
        advances = cut.index == self.cursor + 1
        if advances and not self._gate_is_open(cut.seen_version):
            raise Refused("AdmissionConflict")
        if cut.index is not None and not advances and self._orphan() != cut.index:
            raise Refused("AdmissionConflict")
        if cut.loader_revision not in (None, self.loader_revision):
            raise Refused("AdmissionConflict")
        self._check_places(cut.places)
        if cut.index is not None and self._is_full_of_bytes:
            raise Refused("BufferFull")
        if advances:
            self.cursor += 1
            self.admitted = True
        if cut.loader_revision is not None:
            self.loader_revision += 1
        if cut.index is not None:
            self._keep_open(cut.index, member)
        if cut.places:
            self._take_places(member, cut.places, answers=cut.index)

    def reserve(self, member: Member, place: Place) -> int:
        self.require(member)
        self._check_places([place])
        return self._take_places(member, [place], answers=None)

    def _check_places(self, places: Sequence[Place]) -> None:
        if any(place.group_id in self.groups for place in places):
            raise Refused("DuplicateGroup")
        if self.occupancy + len(places) > self.capacity:
            raise Refused("BufferFull")
        if places and self._is_full_of_bytes:
            raise Refused("BufferFull")

    def _take_places(self, member: Member, places: Sequence[Place], *, answers: int | None) -> int:
        fence = self.draw()
        for place in places:
            self.reserved_total += 1
            self.groups[place.group_id] = Group(
                group_id=place.group_id,
                order=self.reserved_total,
                start=place.weight,
                target=place.target,
                fence=fence,
                holder=member.epoch,
            )
        self._answer_admissions(member, {place.target for place in places}, admitted=answers)
        return fence

    def _answer_admissions(
        self, member: Member, targets: set[int | None], *, admitted: int | None
    ) -> None:
        """Stamped groups answer the admission of their step, others the cut's own or the oldest."""
        own = [i for i, holder in self.admissions.items() if holder == (member.owner, member.epoch)]
        answered = {index for index in own if index in targets}
        if admitted is not None:
            answered.add(admitted)
        elif None in targets and own:
            answered.add(min(own))
        for index in answered:
            self.admissions.pop(index, None)

    def take_tickets(self, member: Member, *, most: int, weight: int) -> list[Group]:
        self.require(member)
        free = self.where(lambda g: g.state == "reserved" and g.holder is None)[:most]
        fence = self.draw() if free else 0
        for group in free:
            group.holder, group.fence = member.epoch, fence
            group.start = max(group.start, weight)
        return free

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
        return furthest

    # Training

    def select(
        self, member: Member, *, rule: str, lowest: int, highest: int, least: int, most: int
    ) -> list[str]:
        self.require(member)
        chosen = self._eligible(rule, lowest, highest)[:most]
        return self._claim(member, chosen) if len(chosen) >= least else []

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
        return self._claim(member, self.all_in(group_ids, "ready"))

    def _claim(self, member: Member, groups: Iterable[Group]) -> list[str]:
        batch, taken = self.draw(), list(groups)
        for group in taken:
            group.state, group.fence, group.batch = "claimed", batch, batch
            group.holder = member.epoch
        member.batches.append(batch)
        return [group.group_id for group in taken]

    def write_back(self, member: Member, group_ids: Sequence[str]) -> None:
        self.require(member)
        groups = self.all_in(group_ids, "claimed")
        if any(group.holder != member.epoch for group in groups):
            raise Refused("ClaimMismatch")

    def settle_step(self, member: Member, step: int, *, empty: bool) -> tuple[int, tuple[str, ...]]:
        """Return the late reservations aborted and the groups trained."""
        self.require(member)
        named = tuple(member.batches)
        if step != self.version:
            if self.last_step is None or self.last_step[:2] != (step, named):
                raise Refused("StepMismatch")
            member.batches.clear()
            return self.last_step[2]
        owned = self.owned(member)
        if not owned and not empty:
            raise Refused("ClaimMismatch")
        if any(group.batch not in named for group in owned):
            raise Refused("ClaimMismatch")
        late = [g for g in self.in_state("reserved") if g.target is not None and g.target <= step]
        late = late if self.in_order else []
        self.retire(owned, "trained", "trained")
        self.retire(late, "aborted", "stale")
        self.version = step + 1
        answer = (len(late), tuple(group.group_id for group in owned))
        self.last_step = (step, named, answer)
        member.batches.clear()
        return answer

    def settle_exactly(self, member: Member, group_ids: Sequence[str]) -> None:
        require_distinct(group_ids)
        self.require(member)
        owned = self.owned(member)
        if {group.group_id for group in owned} != set(group_ids):
            raise Refused("ClaimMismatch")
        self.retire(owned, "trained", "trained")
        member.batches.clear()

    def requeue(self, member: Member, group_ids: Sequence[str] | None, *, failed: bool) -> int:
        """Give named claims back, or all of the session's."""
        if group_ids is not None:
            require_distinct(group_ids)
        self.require(member)
        groups = self.owned(member) if group_ids is None else self.all_in(group_ids, "claimed")
        if any(group.holder != member.epoch for group in groups):
            raise Refused("ClaimMismatch")
        fence = self.draw()
        for group in groups:
            group.state, group.holder, group.batch, group.fence = "ready", None, None, fence
            group.requeues += failed
            if group.requeues > self.max_requeues:
                group.state = "quarantined"
        self.count("requeued", len(groups))
        kept = {group.batch for group in self.owned(member)}
        member.batches[:] = [batch for batch in member.batches if batch in kept]
        return len(groups)

    def transfer(self, member: Member, receiver: str) -> int:
        self.require(member)
        if receiver not in self.owners:
            raise Refused("ClaimError")
        owned = self.owned(member)
        batch = self.draw() if owned else 0
        for group in owned:
            group.batch, group.fence, group.holder = batch, batch, self.owners[receiver]
        member.batches.clear()
        return len(owned)

    def adopt(self, member: Member) -> list[str]:
        owned = self.owned(member)
        if owned:
            member.batches[:] = sorted({group.batch or 0 for group in owned})
        return [group.group_id for group in owned]

"""The model's first half: who may dispatch, and how groups come into the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.property.slots import Group, Ledger, Member, OpenCut, Place, Refused


@dataclass(kw_only=True)
class Reserving(Ledger):
    """Admission, cuts, reservations and tickets of one run."""

    capacity: int
    max_payload_bytes: int
    in_order: bool
    window: int
    admissions: dict[int, tuple[str, int]] = field(default_factory=dict)
    cursor: int = -1
    loader_revision: int = 0

    def set_window(self, member: Member, window: int) -> None:
        self.require(member)
        self.window = window

    def seed(self, member: Member, cursor: int, *, exact: bool) -> None:
        self.require(member)
        if cursor == self.cursor:
            return
        if self.accounts.first_admitted is None:
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
            self.accounts.begin(index)
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
        if cut.loader_revision is not None:
            self.loader_revision += 1
        if cut.index is not None:
            self._keep_open(cut.index, member)
        if cut.places:
            self._take_places(member, cut.places, answers=cut.index)
        if advances:
            self.accounts.begin(self.cursor)

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
        first_attempts = {place.target for place in places if not place.replacement}
        batch = self._answer_admissions(member, first_attempts, admitted=answers)
        if batch is None and self.cursor >= 0:
            batch = self.cursor
        fence = self.draw()
        for place in places:
            self.place(member, place, fence=fence, batch=batch)
        return fence

    def place(self, member: Member, place: Place, *, fence: int, batch: int | None) -> None:
        self.reserved_total += 1
        group = self.groups[place.group_id] = Group(
            group_id=place.group_id,
            order=self.reserved_total,
            start=place.weight,
            target=place.target,
            fence=fence,
            holder=member.epoch,
            dispatch=batch if place.target is None else place.target,
            replacement=place.replacement,
        )
        if place.replacement:
            self.accounts.credit(group.dispatch, "replaced", version=self.version)

    def _answer_admissions(
        self, member: Member, targets: set[int | None], *, admitted: int | None
    ) -> int | None:
        """Stamped groups answer the admission of their step, others the cut's own or the oldest.

        Replacements answer none. Returns the batch that groups without a stamp belong to.
        """
        own = [i for i, holder in self.admissions.items() if holder == (member.owner, member.epoch)]
        batch = admitted
        if batch is None and None in targets and own:
            batch = min(own)
        for index in [*(i for i in own if i in targets), batch]:
            self.admissions.pop(index if index is not None else -1, None)
        return batch

    def take_tickets(self, member: Member, *, most: int, weight: int) -> list[Group]:
        self.require(member)
        free = self.where(lambda g: g.state == "reserved" and g.holder is None)[:most]
        fence = self.draw() if free else 0
        for group in free:
            group.holder, group.fence = member.epoch, fence
            group.start = max(group.start, weight)
        return free

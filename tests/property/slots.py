"""What the plain model is made of: groups, sessions, cuts, and the places where they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.property.accounts import Accounts


class Refused(Exception):
    """The verb changes nothing; ``args[0]`` is the name of the error class a caller must see."""


@dataclass
class Group:
    """One live group.

    Attributes:
        content: Tells the rows of one commit from those of another.
        written: Whether a claim's holder wrote columns back.
        dispatch: The batch it was dispatched with.
        replacement: 0 for a first attempt at a place of a batch, else how often it was replaced.
    """

    group_id: str
    order: int
    start: int
    target: int | None
    fence: int
    holder: int | None
    state: str = "reserved"
    end: int | None = None
    attempt: int = 1
    requeues: int = 0
    committed_fence: int | None = None
    batch: int | None = None
    payload_bytes: int = 0
    content: int | None = None
    written: bool = False
    dispatch: int | None = None
    replacement: int = 0

    @property
    def account(self) -> int | None:
        """The batch that a loss of the group is credited to."""
        return self.dispatch if self.target is None else self.target


@dataclass
class Selected:
    """A selection for good that a session has not let go: its groups as they were when ready."""

    number: int
    epoch: int
    groups: list[Group]


@dataclass
class Member:
    """A session as its process knows it; it does not learn of its own death."""

    owner: str
    epoch: int
    batches: list[int] = field(default_factory=list)
    selections: list[Selected] = field(default_factory=list)

    @property
    def selected(self) -> dict[str, Group]:
        """The groups it has selected for good by id, the newest of an id."""
        return {group.group_id: group for taken in self.selections for group in taken.groups}


@dataclass(frozen=True)
class Place:
    """A place in the buffer that is asked for."""

    group_id: str
    weight: int
    target: int | None
    replacement: int = 0


@dataclass(frozen=True)
class OpenCut:
    """What a cut saw when it was opened, and what was recorded on it."""

    index: int | None
    loader_revision: int | None
    seen_version: int
    places: Sequence[Place]


@dataclass
class Ledger:
    """The live groups of a run, who is attached, and how groups ended.

    Attributes:
        accounts: What the batches lost and got, and the reward tally.
        version: The trainer version.
        owners: Epoch of each attached owner.
        totals: Groups by end, and requeues.
        ends: Groups by end and reason.
        selections: What sessions have selected for good and still read, in order.
    """

    max_attempts: int
    max_requeues: int
    accounts: Accounts
    version: int = 0
    groups: dict[str, Group] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    selections: list[Selected] = field(default_factory=list)
    reserved_total: int = 0
    _drawn: int = 0

    def attach(self, owner: str, *, takeover: bool) -> Member:
        replaced = [name for name in self.owners if name == owner or takeover]
        for epoch in [self.owners.pop(name) for name in replaced]:
            self._give_back(epoch, counted=not takeover)
        self.owners[owner] = self.draw()
        return Member(owner, self.owners[owner])

    def end(self, member: Member, *, counted: bool) -> None:
        if self.owners.get(member.owner) == member.epoch:
            del self.owners[member.owner]
            self._give_back(member.epoch, counted=counted)

    def _give_back(self, epoch: int, *, counted: bool) -> None:
        fence = self.draw()
        self.selections = [taken for taken in self.selections if taken.epoch != epoch]
        for group in self.where(lambda g: g.holder == epoch):
            group.holder, group.fence, group.batch, group.written = None, fence, None, False
            if group.state == "reserved":
                group.attempt += counted
                spent = group.attempt > self.max_attempts
            else:
                group.state = "ready"
                group.requeues += counted
                self.count("requeued", 1)
                spent = group.requeues > self.max_requeues
            if spent:
                self.quarantine(group)

    def quarantine(self, group: Group) -> None:
        """Set a group apart; its batch has lost it."""
        group.state = "quarantined"
        self.accounts.credit(group.account, "lost", version=self.version)

    def require(self, member: Member) -> None:
        if self.owners.get(member.owner) != member.epoch:
            raise Refused("ClaimLost")

    def owned(self, member: Member) -> list[Group]:
        """Return the groups a session has claimed."""
        return self.where(lambda g: g.holder == member.epoch and g.state == "claimed")

    def name_of(self, epoch: int | None) -> str | None:
        return next((name for name, held in self.owners.items() if held == epoch), None)

    def where(self, wanted: Callable[[Group], bool]) -> list[Group]:
        """Return groups in buffer order."""
        return sorted(filter(wanted, self.groups.values()), key=lambda g: g.order)

    def in_state(self, *states: str) -> list[Group]:
        return self.where(lambda g: g.state in states)

    def live(self, group_id: str) -> Group:
        if group_id not in self.groups:
            raise Refused("UnknownGroup")
        return self.groups[group_id]

    def all_in(self, group_ids: Sequence[str], *states: str) -> list[Group]:
        groups = [self.live(group_id) for group_id in group_ids]
        if any(group.state not in states for group in groups):
            raise Refused("WrongState")
        return groups

    def retire(self, groups: Sequence[Group], end: str, reason: str) -> None:
        for group in groups:
            del self.groups[group.group_id]
            if end != "trained" and group.state != "quarantined":
                self.accounts.credit(group.account, "lost", version=self.version)
        self.count(end, len(groups))
        if groups:
            name = f"{end}:{reason}"
            self.ends[name] = self.ends.get(name, 0) + len(groups)

    def count(self, total: str, more: int) -> None:
        self.totals[total] = self.totals.get(total, 0) + more

    def draw(self) -> int:
        self._drawn += 1
        return self._drawn

    @property
    def occupancy(self) -> int:
        return sum(group.state != "quarantined" for group in self.groups.values())

    @property
    def payload_bytes(self) -> int:
        return sum(group.payload_bytes for group in self.groups.values())


def require_distinct(group_ids: Sequence[str]) -> None:
    """Refuse no ids, and ids that stand twice."""
    if len(set(group_ids)) != len(group_ids) or not group_ids:
        raise Refused("ValueError")

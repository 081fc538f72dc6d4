"""What checkpoints keep and bring back, said plainly: dictionaries, and whose rows are needed.

A group's rows are known by the number of their commit, so that "freed too early" and "never freed"
are comparisons of two sets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


class Refused(Exception):
    """The name of the error that a store answers with."""


@dataclass(frozen=True)
class Group:
    """A live group: its state (a ticket is one), and the number of its commit if it has rows."""

    state: str
    content: int | None = None


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds, and under which store epoch it was made."""

    groups: dict[str, Group]
    version: int
    epoch: int
    pinned: bool


@dataclass
class CheckpointModel:
    """A run with one host.

    Attributes:
        remains: Rows that a drop which was cut short has perhaps not given back.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    checkpoints: dict[str, Saved] = field(default_factory=dict)
    remains: set[int] = field(default_factory=set)
    version: int = 0
    epoch: int = 1
    commits: int = 0

    def named(self, *states: str) -> list[str]:
        """Return the groups in some states."""
        return [name for name, group in self.groups.items() if group.state in states]

    def reserve(self, name: str) -> None:
        if name in self.groups:
            raise Refused("DuplicateGroup")
        self.groups[name] = Group("reserved")

    def commit(self, name: str) -> int:
        self.commits += 1
        self.groups[name] = Group("ready", self.commits)
        return self.commits

    def become(self, names: list[str], state: str) -> None:
        for name in names:
            self.groups[name] = replace(self.groups[name], state=state)

    def end(self, names: list[str]) -> None:
        for name in names:
            del self.groups[name]

    def settle(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._require_free(checkpoint)
        self.end(self.named("claimed"))
        self.version += 1
        if checkpoint is not None:
            self._save(checkpoint, pinned=False)
            self.tidy_up(None)

    def reopen(self) -> None:
        self.become(self.named("claimed"), "ready")
        self.become(self.named("reserved"), "ticket")

    def create(self, name: str, *, replace_it: bool, pinned: bool, keep: int | None) -> None:
        if not replace_it:
            self._require_free(name)
        self._save(name, pinned=pinned)
        self.tidy_up(keep)

    def _require_free(self, name: str) -> None:
        known = self.checkpoints.get(name)
        if known is not None and known.epoch == self.epoch:
            raise Refused("CheckpointExists")

    def _save(self, name: str, *, pinned: bool) -> None:
        self.checkpoints.pop(name, None)  # a new one of the name is the newest
        self.checkpoints[name] = Saved(dict(self.groups), self.version, self.epoch, pinned)

    def tidy_up(self, keep: int | None) -> None:
        """Forget what is too old, and finish drops that were cut short."""
        old = [name for name, saved in self.checkpoints.items() if not saved.pinned]
        for name in old[: max(0, len(old) - keep) if keep is not None else 0]:
            del self.checkpoints[name]
        self.remains.clear()

    def drop(self, name: str) -> None:
        self._saved(name)
        del self.checkpoints[name]
        self.remains.clear()

    def cut_short(self, name: str) -> None:
        """Drop a checkpoint as far as one slice, and no further."""
        self.remains |= _contents(self._saved(name).groups)
        del self.checkpoints[name]

    def restore(self, name: str, *, mode: str) -> None:
        saved = self._saved(name)
        self.groups = {} if mode == "none" else dict(saved.groups)
        self.become(self.named("claimed"), "ready")
        self.become(self.named("reserved"), "ticket")
        if mode == "prompts_only":
            self.groups = dict.fromkeys(self.groups, Group("ticket"))
        self.version, self.epoch = saved.version, self.epoch + 1

    def _saved(self, name: str) -> Saved:
        if name not in self.checkpoints:
            raise Refused("CheckpointMissing")
        return self.checkpoints[name]

    @property
    def needed(self) -> set[int]:
        """The commits whose rows must be on the server."""
        kept = [_contents(saved.groups) for saved in self.checkpoints.values()]
        return _contents(self.groups).union(*kept)


def _contents(groups: dict[str, Group]) -> set[int]:
    return {group.content for group in groups.values() if group.content is not None}

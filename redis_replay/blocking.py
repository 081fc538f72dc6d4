"""The asynchronous classes as blocking ones: one rule for all of them, no second implementation.

A blocking object stands for an asynchronous one. Its methods run in the event loop of one thread,
which its store starts when it is opened; its properties are read where they are asked for. What
comes back is handed on as it is, unless it is asynchronous itself: then it is stood for as well.
`redis_replay.sync` names the classes; their signatures are in ``sync.pyi`` (D56).
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Final, cast
from weakref import WeakValueDictionary

from redis_replay.bridge import Bridge, HeldBlock
from redis_replay.errors import StoreClosed
from redis_replay.processes import OfOneProcess
from redis_replay.store import ReplayStore


class Blocking(OfOneProcess):
    """Stands for an asynchronous object; `blocking_class` makes a subclass for each class."""

    __slots__ = ("__weakref__", "_held", "_home", "_original")

    STANDS_FOR: ClassVar[type]

    _original: Any
    _home: Home | None
    _held: HeldBlock | None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        home = _home_of(*arguments, *named.values())
        if home is None:
            raise TypeError(
                f"a {type(self).__name__} is made of what an open store of redis_replay.sync gave "
                "out, such as its buffer"
            )
        self._stand_for(home.run(self.STANDS_FOR, *arguments, **named), home)

    def _stand_for(self, original: Any, home: Home | None) -> None:
        self._original, self._home, self._held = original, home, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._home is not None:
            self._home.bridge.require_own()
        value = getattr(self._original, name)
        if inspect.ismethod(value):
            return self._blocking(value)
        return value if self._home is None else self._home.stand_in(value)

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            home = self._opened()
            return home.stand_in(home.run(method, *arguments, **named))

        return call

    def _opened(self) -> Home:
        if self._home is None:
            raise StoreClosed("the store is not open; use 'with open_store(...) as store'")
        return self._home

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._original) if not name.startswith("_")]

    def __repr__(self) -> str:
        return f"<blocking {self._original!r}>"

    def __enter__(self) -> Any:
        if not hasattr(self._original, "__aenter__"):
            raise TypeError(f"a {type(self).__name__} cannot be used in a 'with' statement")
        home = self._opened()
        self._held = HeldBlock(home.bridge, self._original)
        return home.stand_in(self._held.enter())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Leave the block; in a forked process, whose parent goes on with it, do nothing."""
        held, self._held = self._held, None
        if held is None or not self._opened().bridge.is_own:
            return None
        return held.leave(kind, error, trace)


class BlockingStore(Blocking):
    """A store; it starts the thread of all its calls when it is opened, and ends it."""

    __slots__ = ()

    def __enter__(self) -> Any:
        if self._home is not None:
            raise StoreClosed("a store is opened once; call open_store again")
        self._home = Home(Bridge())
        try:
            return super().__enter__()
        except BaseException:
            self._home.bridge.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Close the store; in a forked process, whose parent goes on with it, do nothing."""
        home = self._home
        if home is None or not home.bridge.is_own:
            return None
        try:
            return super().__exit__(kind, error, trace)
        finally:
            home.bridge.stop()

    def close(self) -> None:
        """Close the store, as leaving its block does. Repeatable."""
        self.__exit__(None, None, None)


class Home:
    """One opened store's bridge, and the blocking objects made on it so far."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self._stand_ins: WeakValueDictionary[int, Blocking] = WeakValueDictionary()
        self._lock = threading.Lock()

    def run(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Run a function in the store's loop, on what the arguments stand for.

        Raises:
            ValueError: an argument belongs to another open store.
        """
        given = [self._original(item) for item in arguments]
        given_by_name = {name: self._original(item) for name, item in named.items()}
        return self.bridge.call(functools.partial(function, *given, **given_by_name))

    def _original(self, value: Any) -> Any:
        if not isinstance(value, Blocking):
            return value
        if _home_of(value) is not self:
            raise ValueError(f"{value!r} belongs to another open store")
        return value._original  # pyright: ignore[reportPrivateUsage]

    def stand_in(self, value: Any) -> Any:
        """Return the blocking object of an asynchronous one; other values as they are."""
        kind: Any = type(value)
        if not is_asynchronous(kind):
            return value
        with self._lock:
            known = self._stand_ins.get(id(value))
            if known is None:
                known = self._stand_ins[id(value)] = stand_for(value, self)
            return known


def stand_for(original: Any, home: Home | None = None) -> Blocking:
    """Return a new blocking object for an asynchronous one; a store brings its own home."""
    kind: Any = type(original)
    cls = blocking_class(kind)
    made = cls.__new__(cls)
    made._stand_for(original, home)  # pyright: ignore[reportPrivateUsage]
    return made


@functools.cache
def is_asynchronous(cls: type) -> bool:
    """Return whether a class has anything to await."""
    members = (inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_"))
    return hasattr(cls, "__aenter__") or any(map(inspect.iscoroutinefunction, members))


@functools.cache
def blocking_class(cls: type) -> type[Blocking]:
    """Return the blocking class of an asynchronous one."""
    base = BlockingStore if issubclass(cls, ReplayStore) else Blocking
    facts = {"__slots__": (), "__doc__": cls.__doc__, "__module__": _SYNC, "STANDS_FOR": cls}
    made: Any = type(cls.__name__, (base,), facts)
    return cast(type[Blocking], made)


@functools.cache
def blocking_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes and returns blocking objects for asynchronous ones."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        home = _home_of(*arguments, *named.values())
        if home is not None:
            return home.stand_in(home.run(function, *arguments, **named))
        value = function(*arguments, **named)
        kind: Any = type(value)
        return stand_for(value) if is_asynchronous(kind) else value

    return call


def counterpart(value: Any) -> Any:
    """Return what stands for a public name of the package.

    What is not asynchronous stands for itself, and so do protocols and abstract classes: samplers
    are written against them, and a sampler is asynchronous.
    """
    if inspect.isfunction(value):
        return blocking_function(value)
    is_open = inspect.isclass(value) and not (
        inspect.isabstract(value) or getattr(value, "_is_protocol", False)
    )
    return blocking_class(value) if is_open and is_asynchronous(value) else value


_SYNC: Final = "redis_replay.sync"


def _home_of(*values: Any) -> Home | None:
    given = [value for value in values if isinstance(value, Blocking)]
    return given[0]._home if given else None  # pyright: ignore[reportPrivateUsage]

"""What a sampler's class is trusted with, read statically: no property of a stranger runs (D37).

A capability counts as declared only if it stands in the class's own body or in that of a base class
outside this package: what a built-in may be trusted with says nothing about what a subclass of it
does. Undeclared is false.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from redis_replay.errors import ConfigurationError

CHECKPOINT: Final = "supports_buffer_checkpoint"
CLAIMS: Final = "supports_training_claims"
_PACKAGE: Final = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Trust:
    """A sampler class and what it may be trusted with.

    Attributes:
        name: The class as ``module:ClassName``.
        checkpoint: Whether buffered groups may be restored under it.
        claims: Whether groups that it selects stay claimed until their step commits.
    """

    name: str
    checkpoint: bool
    claims: bool


def trust_of(sampler_class: type[Any]) -> Trust:
    """Return what a class is trusted with; a built-in one with what it says.

    Raises:
        TypeError: a declaration is not a plain boolean class attribute.
    """
    name = f"{sampler_class.__module__}:{sampler_class.__qualname__}"
    read = plain_capability if _is_ours(sampler_class) else declared_capability
    return Trust(name, read(sampler_class, CHECKPOINT), read(sampler_class, CLAIMS))


def remember_sampler(buffer: object, trust: Trust) -> None:
    """Tell a buffer which sampler works on it, if it wants to know."""
    remember: Callable[[Trust], None] | None = getattr(buffer, "remember_sampler", None)
    if remember is not None:
        remember(trust)


def declared_capability(sampler_class: type[Any], capability: str) -> bool:
    """Return what the author of a custom class declared, false when nothing."""
    for owner in sampler_class.__mro__:
        if capability in vars(owner) and (owner is sampler_class or not _is_ours(owner)):
            return _plain_boolean(vars(owner)[capability], sampler_class, capability)
    return False


def plain_capability(sampler_class: type[Any], capability: str) -> bool:
    """Return a capability of a built-in class, inherited or not."""
    found: object = inspect.getattr_static(sampler_class, capability, None)
    return _plain_boolean(found, sampler_class, capability)


def require_restorable(samplers: Iterable[Trust]) -> None:
    """Return if buffered groups may be restored under all of these samplers.

    Raises:
        ConfigurationError: one does not declare it; nothing was written.
    """
    for trust in samplers:
        if not trust.checkpoint:
            raise ConfigurationError(
                f"sampler {trust.name!r} does not declare {CHECKPOINT} = True in its own class "
                "body, so no buffered groups are kept or restored under it; nothing was written. "
                "Declare it if all that the sampler goes by is in the store, or restore with "
                "mode='none', which brings no groups back."
            )


def require_keepable(samplers: Iterable[Trust]) -> None:
    """Return if checkpoints may be kept of what all of these samplers select from.

    Raises:
        ConfigurationError: one does not declare one of the two capabilities; nothing was written.
    """
    for trust in samplers:
        require_restorable([trust])
        if not trust.claims:
            raise ConfigurationError(
                f"sampler {trust.name!r} does not declare {CLAIMS} = True in its own class body, "
                "so a group that it has selected is in no checkpoint before its step commits; "
                "nothing was written. Declare it, or keep no checkpoints."
            )


def _is_ours(owner: type[Any]) -> bool:
    return owner.__module__.partition(".")[0] == _PACKAGE


def _plain_boolean(value: object, sampler_class: type[Any], capability: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(
            f"{sampler_class.__name__}.{capability} must be a boolean class attribute, "
            f"got {type(value).__name__}"
        )
    return value

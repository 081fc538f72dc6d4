"""The factory: which class a config builds, what a class is trusted with, what is refused."""

# pyright: reportPrivateUsage=false
# The private names are part of the contract (decision 36), or are the table under test.

from __future__ import annotations

import abc
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import pytest
from pydantic import BaseModel

from redis_replay.protocols import PromptGroupSampler, TransactionalAdmissionSampler
from redis_replay.samplers import factory
from redis_replay.samplers.base import BaseSampler
from redis_replay.samplers.config import (
    CustomSamplerConfig,
    InOrderSamplerConfig,
    ReadyFirstSamplerConfig,
    WeightFifoSamplerConfig,
    WindowedSamplerConfig,
)
from redis_replay.samplers.factory import (
    create_sampler,
    sampler_supports_buffer_checkpoint,
    sampler_supports_training_claims,
)
from redis_replay.samplers.in_order import InOrderSampler
from redis_replay.samplers.ready_first import ReadyFirstSampler
from redis_replay.samplers.weight_fifo import WeightFifoSampler
from redis_replay.samplers.windowed import WindowedSampler

BUFFER = object()


class Complete:
    """A sampler of someone else, with every member the Protocol asks for and no base class."""

    supports_buffer_checkpoint = False

    def __init__(self, buffer: object, **extras: object) -> None:
        self.buffer = buffer
        self.extras = extras

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        return None

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[None, int]:
        return None, 0

    async def evict(self, *, current_train_weight: int) -> int:
        return 0

    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        return False

    @property
    def is_on_policy(self) -> bool:
        raise AssertionError("the factory evaluated a property")

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        return None

    @property
    def dispatch_index(self) -> int:
        raise AssertionError("the factory evaluated a property")

    def set_dispatch_index(self, resume_from_trainer_version: int) -> None: ...

    def restore_dispatch_index(self, dispatch_index: int) -> None: ...


MEMBERS = [name for name in vars(Complete) if not name.startswith("_")]


def _take_buffer(self: object, buffer: object) -> None: ...


def _never_constructed(self: object, *_: object, **__: object) -> None:
    raise AssertionError("the class was constructed")


@pytest.fixture
def target_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """Put an object into an importable module of a stranger; return its target."""
    module = ModuleType("package_of_a_stranger")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def place(thing: object) -> str:
        vars(module)["Thing"] = thing
        return "package_of_a_stranger:Thing"

    return place


def _custom(target: str, **extras: object) -> dict[str, object]:
    return {"name": "custom", "target": target, **extras}


# built-ins ---------------------------------------------------------------------------------------

BUILT_INS: list[tuple[Any, type, dict[str, object]]] = [
    (
        WindowedSamplerConfig(max_staleness_versions=3, sample_freshest_first=True),
        WindowedSampler,
        {
            "max_staleness_versions": 3,
            "sample_freshest_first": True,
            "min_groups_for_streaming_train": 5,
        },
    ),
    (
        ReadyFirstSamplerConfig(max_staleness_versions=3),
        ReadyFirstSampler,
        {"max_staleness_versions": 3},
    ),
    (
        WeightFifoSamplerConfig(max_staleness_versions=4),
        WeightFifoSampler,
        {"max_staleness_versions": 4},
    ),
    (
        InOrderSamplerConfig(max_lookahead_versions=2, warmup_lookahead_versions=6),
        InOrderSampler,
        {"max_lookahead_versions": 2, "warmup_lookahead_versions": 6},
    ),
]


class _Recorder:
    """Stands in for a sampler class and keeps how it was called."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        self.arguments = arguments
        self.keywords = keywords


@pytest.mark.parametrize(("config", "sampler_class", "keywords"), BUILT_INS)
def test_a_built_in_config_names_its_class_and_its_constructor_takes_the_keywords(
    config: Any, sampler_class: type, keywords: dict[str, object]
) -> None:
    assert sampler_class is factory._sampler_class_for_config(config)
    inspect.signature(sampler_class).bind(BUFFER, **keywords)


@pytest.mark.parametrize(("config", "sampler_class", "keywords"), BUILT_INS)
@pytest.mark.parametrize("form", ["config", "mapping"])
def test_a_sampler_is_built_from_the_numbers_of_its_config(
    config: BaseModel,
    sampler_class: type,
    keywords: dict[str, object],
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = factory._BUILT_INS[type(config)]
    monkeypatch.setitem(factory._BUILT_INS, type(config), (_Recorder, row[1]))

    sampler: Any = create_sampler(
        BUFFER,
        config.model_dump() if form == "mapping" else cast(Any, config),
        min_groups_for_streaming_train=5,
    )

    assert sampler_class is row[0]
    assert (BUFFER,) == sampler.arguments
    assert keywords == sampler.keywords


def test_a_config_class_with_other_defaults_builds_the_sampler_it_extends() -> None:
    class HouseConfig(InOrderSamplerConfig):
        max_lookahead_versions: int = 4

    assert InOrderSampler is factory._sampler_class_for_config(HouseConfig())


# the target --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["pkg.mod.Cls", "", ":", ":Cls", "pkg.mod:"])
def test_a_target_without_module_and_class_is_refused_with_the_expected_form(target: str) -> None:
    for refuse in (
        lambda: create_sampler(BUFFER, _custom(target)),
        lambda: sampler_supports_buffer_checkpoint(_custom(target)),
    ):
        with pytest.raises(ValueError, match="module:ClassName"):
            refuse()


def test_a_target_that_is_not_in_its_module_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="module 'json' has no 'NoSuchSampler'"):
        create_sampler(BUFFER, _custom("json:NoSuchSampler"))


def test_a_module_that_cannot_be_imported_says_which_target_asked_for_it() -> None:
    with pytest.raises(ModuleNotFoundError) as refused:
        create_sampler(BUFFER, _custom("there_is_no_such_module:Sampler"))
    assert ["while importing the custom sampler target 'there_is_no_such_module:Sampler'"] == (
        refused.value.__notes__
    )


@pytest.mark.parametrize("thing", [object(), _custom, list[int], 3])
def test_a_target_that_is_not_a_class_is_refused(
    thing: object, target_of: Callable[[object], str]
) -> None:
    config = _custom(target_of(thing))
    for refuse in (
        lambda: create_sampler(BUFFER, config),
        lambda: sampler_supports_training_claims(config),
    ):
        with pytest.raises(TypeError, match="not a class"):
            refuse()


# members of a custom class -----------------------------------------------------------------------


def test_a_complete_class_is_built_with_the_buffer_and_the_extra_keys(
    target_of: Callable[[object], str],
) -> None:
    config = CustomSamplerConfig.model_validate(_custom(target_of(Complete), spread=0.5, k=3))

    sampler: Any = create_sampler(BUFFER, config, min_groups_for_streaming_train=5)

    assert type(sampler) is Complete
    assert sampler.buffer is BUFFER
    assert {"spread": 0.5, "k": 3} == sampler.extras


@pytest.mark.parametrize("absent", MEMBERS)
def test_a_class_that_lacks_one_member_is_refused_by_its_name(
    absent: str, target_of: Callable[[object], str]
) -> None:
    body = {name: member for name, member in vars(Complete).items() if name in MEMBERS}
    del body[absent]
    target = target_of(type("Incomplete", (), {**body, "__init__": _take_buffer}))

    with pytest.raises(TypeError, match=rf"missing: {absent}$"):
        create_sampler(BUFFER, _custom(target))


def test_an_empty_class_is_refused_with_everything_it_lacks_before_it_is_constructed(
    target_of: Callable[[object], str],
) -> None:
    empty = type("Empty", (), {"__init__": _never_constructed})

    with pytest.raises(TypeError, match="does not satisfy PromptGroupSampler") as refused:
        create_sampler(BUFFER, _custom(target_of(empty)))
    assert ", ".join(sorted(MEMBERS)) in str(refused.value)


def test_the_stubs_of_the_protocol_itself_do_not_count_as_members(
    target_of: Callable[[object], str],
) -> None:
    class OnlyInherits(PromptGroupSampler):
        supports_buffer_checkpoint = True
        __init__ = _never_constructed

        async def evict(self, *, current_train_weight: int) -> int:
            return 0

    with pytest.raises(TypeError) as refused:
        create_sampler(BUFFER, _custom(target_of(OnlyInherits)))
    still_missing = sorted(set(MEMBERS) - {"evict", "supports_buffer_checkpoint"})
    assert str(refused.value).endswith(f"missing: {', '.join(still_missing)}")


def test_an_abstract_method_is_a_missing_member_and_nothing_is_constructed(
    target_of: Callable[[object], str],
) -> None:
    class WithoutSelect(BaseSampler):
        __init__ = _never_constructed

        async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
            return None

    with pytest.raises(TypeError, match=r"missing: select$"):
        create_sampler(BUFFER, _custom(target_of(WithoutSelect)))


def test_an_abstract_property_is_a_missing_member_and_nothing_is_constructed(
    target_of: Callable[[object], str],
) -> None:
    class WithoutCursor(Complete, abc.ABC):
        __init__ = _never_constructed

        @property
        @abc.abstractmethod
        def dispatch_index(self) -> int: ...

    with pytest.raises(TypeError, match=r"missing: dispatch_index$"):
        create_sampler(BUFFER, _custom(target_of(WithoutCursor)))


@pytest.mark.parametrize("member", [None, 3])
def test_a_method_that_cannot_be_called_is_a_missing_member(
    member: object, target_of: Callable[[object], str]
) -> None:
    target = target_of(type("NoEvict", (Complete,), {"evict": member}))

    with pytest.raises(TypeError, match=r"missing: evict$"):
        create_sampler(BUFFER, _custom(target))


def test_attributes_may_be_set_by_the_constructor_instead_of_being_properties(
    target_of: Callable[[object], str],
) -> None:
    body: dict[str, object] = {
        name: member
        for name, member in vars(Complete).items()
        if name in MEMBERS and name not in ("dispatch_index", "is_on_policy")
    }

    def set_both(self: Any, buffer: object) -> None:
        self.dispatch_index = -1
        self.is_on_policy = True

    sampler = create_sampler(
        BUFFER, _custom(target_of(type("Plain", (), {**body, "__init__": set_both})))
    )

    assert -1 == sampler.dispatch_index


def test_a_class_need_not_declare_training_claims(target_of: Callable[[object], str]) -> None:
    assert not hasattr(Complete, "supports_training_claims")
    assert sampler_supports_training_claims(_custom(target_of(Complete))) is False


# the protocols -----------------------------------------------------------------------------------


def test_the_protocols_have_the_signatures_of_their_source() -> None:
    expected = {
        "admit": "(self, *, trainer_version_fn: 'Callable[[], int]') -> 'int | None'",
        "select": (
            "(self, *, current_train_weight: 'int', min_prompt_groups: 'int', "
            "max_prompt_groups: 'int') -> 'tuple[KVBatchMeta | None, int]'"
        ),
        "evict": "(self, *, current_train_weight: 'int') -> 'int'",
        "should_abort_inflight": (
            "(self, *, start_weight_version: 'int', current_train_weight: 'int') -> 'bool'"
        ),
        "required_buffer_capacity": "(self, groups_per_step: 'int') -> 'int | None'",
        "set_dispatch_index": "(self, resume_from_trainer_version: 'int') -> 'None'",
        "restore_dispatch_index": "(self, dispatch_index: 'int') -> 'None'",
        "wait_until_admissible": ("(self, *, trainer_version_fn: 'Callable[[], int]') -> 'None'"),
        "commit_admission": "(self, cut: 'LiveCut') -> 'int | None'",
    }
    actual = {
        name: str(inspect.signature(member))
        for protocol in (PromptGroupSampler, TransactionalAdmissionSampler)
        for name, member in vars(protocol).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }

    assert expected == actual


def test_isinstance_tells_a_sampler_from_something_else() -> None:
    assert not isinstance(BUFFER, PromptGroupSampler)
    assert not isinstance(Complete(BUFFER), TransactionalAdmissionSampler)
    assert set(MEMBERS) == factory._METHODS | factory._ATTRIBUTES

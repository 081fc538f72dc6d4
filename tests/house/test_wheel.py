"""What is installed is what is here: the wheel is built, and its content compared."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

from redis_replay import __version__

_PROJECT = Path(__file__).parents[2]
_INFORMATION = f"redis_replay-{__version__}.dist-info"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """Names in the wheel, built without a network or an environment of its own."""
    place = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(_PROJECT)).build(directory=str(place), versions=["standard"])
    with ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def sources(pattern: str) -> set[str]:
    """Names of the package's own files, as a wheel names them."""
    found = (_PROJECT / "redis_replay").rglob(pattern)
    return {path.relative_to(_PROJECT).as_posix() for path in found}


def test_every_lua_script_is_in_the_wheel(packed: frozenset[str]) -> None:
    scripts = sources("*.lua")
    assert scripts
    assert set() == scripts - packed


def test_every_module_and_the_type_marker_are_in_the_wheel(packed: frozenset[str]) -> None:
    assert set() == (sources("*.py") | {"redis_replay/py.typed"}) - packed


def test_nothing_but_the_package_is_in_the_wheel(packed: frozenset[str]) -> None:
    roots = {name.partition("/")[0] for name in packed}
    assert {"redis_replay", _INFORMATION} == roots


def test_the_wheel_brings_the_command_and_the_license(packed: frozenset[str]) -> None:
    assert f"{_INFORMATION}/entry_points.txt" in packed
    assert f"{_INFORMATION}/licenses/LICENSE" in packed

"""Runs of two servers draw the same numbers here, so that all of them can be compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import fences_from_the_beginning


@pytest.fixture(scope="session", autouse=True)
def comparable_fences() -> Iterator[None]:
    """Let the fences of each new run begin at 1."""
    with fences_from_the_beginning():
        yield

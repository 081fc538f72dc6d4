"""The README's quick start, run as written."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from tests.house.documents import README, code_blocks, text_of
from tests.house.python_source import ROOT

QUICK_START_LINES = 20


def quick_start() -> str:
    """Return the first program of the README."""
    return code_blocks(text_of(README), language="python")[0]


def test_the_quick_start_has_twenty_lines() -> None:
    assert len(quick_start().splitlines()) == QUICK_START_LINES


def test_every_program_of_the_readme_is_python() -> None:
    for number, program in enumerate(code_blocks(text_of(README), language="python")):
        compile(program, f"README.md, program {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_quick_start_prints_what_the_readme_shows(tmp_path: Path) -> None:
    [shown] = code_blocks(text_of(README), language="text")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", quick_start()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("", shown, 0) == (ran.stderr, ran.stdout, ran.returncode)


def test_the_quick_start_leaves_nothing_in_its_folder(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", quick_start()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert [] == list(tmp_path.iterdir())

"""The share of tests that the default run takes, and when all run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pytest


@pytest.mark.sampled(10)
@pytest.mark.parametrize("n", range(40))
def test_many(n):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("n", range(40))
def test_slow(n):
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "wholly"),
    [
        (["."], ()),
        (["test_one.py", "below"], ("test_one",)),
        ([".", "-k", "many or slow"], ("test_one", "test_two")),
    ],
    ids=["folder", "file and folder", "names"],
)
def test_files_that_are_named_run_whole(
    tmp_path: Path, root: Any, arguments: list[str], wholly: tuple[str, ...]
) -> None:
    (tmp_path / "conftest.py").write_text((root / "conftest.py").read_text("utf-8"))
    (tmp_path / "below").mkdir()
    (tmp_path / "test_one.py").write_text(TESTS)
    (tmp_path / "below/test_two.py").write_text(TESTS)
    options = ["-q", "--collect-only", "-p", "no:cacheprovider", "-o", "testpaths=."]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    # They would change the output.
    other = ("PYTEST_ADDOPTS", "TJ_FULL")
    own = {k: v for k, v in os.environ.items() if k not in other}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=own
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("test_one", "test_two"):
        for function in ("test_many", "test_slow"):
            count = done.stdout.count(f"{name}.py::{function}[")
            assert count == 40 if name in wholly else count < 20

"""Processes of tests that gloo has aborted: the program runs once more in new ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

FILE = str(Path(__file__).with_name("ending.py"))


@pytest.mark.slow
def test_a_program_runs_once_more(mortal: Ranks, tmp_path: Path) -> None:
    assert mortal.run(FILE, "aborted_once", str(tmp_path / "mark")) == [0, 1]
    assert {failure.kind for failure in mortal.run(FILE, "aborted")} == {"EOFError"}

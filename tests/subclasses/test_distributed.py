"""Programs of ``DTensor`` against eager: results, gradients, and the collectives in their order."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

from typing import TYPE_CHECKING

from tj_suites import COMMAND
from tj_suites.subclasses.distributed import PROGRAMS, group, verdicts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_on_one_process(name: str, tmp_path: Path) -> None:
    with group(0, 1, str(tmp_path / "store")):
        ((verdict, mine, eagers),) = verdicts([name])
    assert not verdict.differences, str(verdict)
    assert not verdict.fallbacks, str(verdict)
    assert mine == eagers


@pytest.mark.slow
def test_all_programs_on_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dense programs and traced gradients: no collective is lost, and none runs twice."""
    monkeypatch.setenv("TJ_PLUGINS", "torch,autograd,subclass")
    command = [sys.executable, "-W", "ignore", COMMAND, "subclasses.distributed", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("process ")]
    assert done.returncode == 0, "\n".join(said) + done.stderr
    expected = sorted(f"process {i}: {name}: equal" for i in range(2) for name in PROGRAMS)
    assert sorted(said) == expected

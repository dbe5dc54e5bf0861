"""The examples of distributed training: killed or not, their losses are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tj_conformance.sampling import FULL
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

ROOT = Path(__file__).parents[3]
FILE = str(Path(__file__).with_name("resuming.py"))
SLOW = pytest.mark.slow
NAMES = ("ddp", pytest.param("fsdp2", marks=SLOW), pytest.param("tensor_parallel", marks=SLOW))


@pytest.mark.parametrize("name", NAMES)
def test_a_job_goes_on_from_a_checkpoint(name: str, ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(FILE, "example", name, str(tmp_path)):
        whole, resumed = found
        assert len(whole.splitlines()) == 3
        assert resumed == whole


def torchrun(name: str, folder: Path, *arguments: str) -> str:
    """The losses of an example with 4 steps on two processes, which torchrun starts twice."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("--max-restarts", "1", str(ROOT / "examples" / "distributed" / f"{name}.py")),
        *("--steps", "4", "--every", "2", "--folder", str(folder), *arguments),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, timeout=500, env=environment)
    return (folder / "losses.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tensor_parallel"])
def test_torchrun_starts_a_job_again(name: str, tmp_path: Path) -> None:
    expected = torchrun(name, tmp_path / "whole")
    assert len(expected.splitlines()) == 4
    assert torchrun(name, tmp_path / "killed", "--die", "1:3:backward") == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tensor_parallel"])
def test_losses_as_installed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All plugins and no variable: regions read what collectives of the forward have made."""
    expected = torchrun(name, tmp_path / "exact").split()
    for variable in [v for v in os.environ if v.startswith("TJ_") and v != "TJ_CACHE_DIR"]:
        monkeypatch.delenv(variable)
    got = torchrun(name, tmp_path / "installed").split()
    assert list(map(float, got)) == pytest.approx(list(map(float, expected)), rel=1e-3)


@pytest.mark.slow
def test_faults(tmp_path: Path) -> None:
    """Two runs; with ``TJ_FULL=1`` 50 of each of the six moments, which takes an hour or two."""
    runs = 6 * 50 if FULL else 2
    command = [sys.executable, str(ROOT / "tests" / "tj_suites"), "faults", "--runs", str(runs)]
    seconds = 300 + 100 * runs
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 went wrong" in done.stdout

"""Finished programs on disk: a second process finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _folder(_not_disabled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path / "cache"))


SCRIPT = """
import torch, tj_core as tj
x, w = torch.ones(5, 7, requires_grad=True), torch.ones(7, 3, requires_grad=True)
f = tj.jit(lambda x, w: ((x @ w).sin() + 1).exp().sum(), plugins=["inductor", "autograd", "torch"])
f(x, w).backward()
y = x.detach().requires_grad_()
((y @ w).sin() + 1).exp().sum().backward()
assert torch.allclose(x.grad, y.grad)
stats = tj.stats(f)
print(stats.program_kept, "split" in stats.seconds, stats.region_misses, stats.region_kept)
"""


@pytest.mark.slow
def test_a_second_process_runs_no_passes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run() -> str:
        command = [sys.executable, str(script)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert "TJ_CACHE_DIR" in os.environ
    assert [run(), run()] == ["0 True 2 0", "2 False 0 2"]


@pytest.mark.slow
def test_of_four_processes_at_once_one_compiles_each_program(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    found = [process.communicate()[0].split() for process in processes]
    compiled, kept = (sum(int(words[place]) for words in found) for place in (2, 3))
    assert (compiled, kept) == (2, 6)
    assert sum(int(words[0]) for words in found) == 6, "programs, found finished"
    assert not list((tmp_path / "cache").rglob("*.lock"))

"""Inductor's part of a compilation, beside other threads of the process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_inductor.adapter import names, priority
from torch._inductor.loop_body import InterpreterShim


def test_no_function_is_traced_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """FX would replace `nn.Module.__call__`: a call of a module in another thread would raise."""
    traced = []
    own = torch.fx.Tracer.trace

    def trace(self: Any, root: Any, concrete_args: Any = None) -> Any:
        traced.append(root)
        return own(self, root, concrete_args)

    monkeypatch.setattr(torch.fx.Tracer, "trace", trace)
    jitted = tj.jit(lambda x: (x.sin() + 1).exp(), plugins=["inductor", "torch"])
    made = jitted(torch.ones(3))
    InterpreterShim._dummy_gm.cache_clear()  # traced by Inductor, once in a process
    tj.jit(lambda x: (x.cos() + 2).exp(), plugins=["inductor", "torch"])(torch.ones(3))
    assert tj.stats(jitted).region_misses or tj.stats(jitted).region_kept
    torch.testing.assert_close(made, (torch.ones(3).sin() + 1).exp())
    assert traced == []


@pytest.mark.skipif(shutil.which("nice") is None, reason="there is no program `nice`")
@pytest.mark.parametrize("behind", [True, False])
def test_compilers_run_after_calls(
    behind: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(priority, "is_beside", lambda: behind)
    compiler = "sh -c 'nice > priority'"
    with priority.lower_priority():
        names.cpp_builder.run_compile_cmd(compiler, str(tmp_path))
    lower = int(Path(tmp_path, "priority").read_text()) - os.nice(0)
    assert lower == (priority.LOWER if behind else 0)
    names.cpp_builder.run_compile_cmd(compiler, str(tmp_path))
    assert int(Path(tmp_path, "priority").read_text()) == os.nice(0)


@pytest.mark.skipif(shutil.which("nice") is None, reason="there is no program `nice`")
@pytest.mark.parametrize("behind", [True, False])
def test_kernels_are_compiled_after_calls(
    behind: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = []
    own = names.cpp_builder._run_compile_cmd

    def run(command: str, cwd: str) -> None:
        commands.append(command)
        own(command, cwd)

    monkeypatch.setattr(names.cpp_builder, "_run_compile_cmd", run)
    monkeypatch.setattr(priority, "is_beside", lambda: behind)
    monkeypatch.setenv("TJ_CACHE_DIR", "none")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, number = torch.rand(5, 7), 3 + behind  # a kernel that is not loaded yet

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + number).exp() * x

    jitted = tj.jit(program, session=tj.Session(("inductor", "torch")))
    torch.testing.assert_close(jitted(x), program(x))
    assert commands
    assert all(command.startswith("nice -n") is behind for command in commands)

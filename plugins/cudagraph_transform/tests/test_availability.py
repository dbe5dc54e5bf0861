"""Unavailability without CUDA: a state with a reason; the adapter's names are in one file."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING

import tj_core as tj
import tj_cudagraph
import torch
from tj_cudagraph import plugin
from tj_cudagraph.adapter import CudaGraphs, CudaPool
from tj_cudagraph.testing.recorder import Recorder, RecorderPool

if TYPE_CHECKING:
    import pytest


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert plugin.tj_available() == "PyTorch finds no CUDA device"
    monkeypatch.setenv("TJ_PLUGINS", "torch,...")
    found = tj.Session().plugins.state("cudagraph")
    assert (found.state, found.reason) == ("unavailable", "PyTorch finds no CUDA device")


def test_with_one_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert plugin.tj_available() is None
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    assert "allocator" in (plugin.tj_available() or "")


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert plugin.tj_available() == "torch is not installed"


def test_names_of_torch_cuda_stand_in_the_adapter_alone() -> None:
    folder = Path(tj_cudagraph.__file__).parent
    found = {
        file.name
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.cuda")
    }
    assert found == {"adapter.py"}


def test_the_names_of_the_adapter_are_there() -> None:
    file = Path(tj_cudagraph.__file__).parent / "adapter.py"
    names = set(re.findall(r"\btorch(?:\.\w+)+", file.read_text("utf-8")))
    assert "torch.cuda.graph" in names
    for name in names - {"torch.Tensor"}:
        value: object = torch
        for part in name.split(".")[1:]:
            value = getattr(value, part)


def test_the_recorder_has_what_the_adapter_has() -> None:
    def methods(cls: type) -> set[str]:
        return {n for n, v in vars(cls).items() if callable(v) and not n.startswith("_")}

    assert methods(CudaGraphs) == methods(Recorder)
    assert methods(CudaPool) == methods(RecorderPool)

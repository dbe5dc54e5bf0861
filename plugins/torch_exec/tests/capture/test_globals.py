"""Globals of functions in modules with equal names, or made by ``exec``."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import tj_core as tj
import torch

TEXT = """
weight = torch.ones(3) * 2
number = 3

def reads(x):
    return x * weight * number + 1

def writes(x):
    global weight
    weight = x * 2
    return weight + number
"""
X = torch.arange(3.0)


@pytest.mark.parametrize("name", [None, "__main__", "torch", "no_such_module"])
def test_text_that_runs_in_a_dict(name: str | None) -> None:
    torch._dynamo.reset()
    scope: dict[str, Any] = {"torch": torch} | ({} if name is None else {"__name__": name})
    exec(TEXT, scope)
    jitted = tj.jit(scope["reads"])
    for number in (3, 5):
        scope["number"] = number
        assert torch.equal(jitted(X), scope["reads"](X))
    assert not tj.stats(jitted).fallbacks


def imported(monkeypatch: pytest.MonkeyPatch, factor: int) -> Any:
    """Import a module under the name of the previous one, which it replaces."""
    module: Any = types.ModuleType("imported_again")
    module.torch = torch
    monkeypatch.setitem(sys.modules, "imported_again", module)
    exec(TEXT, vars(module))
    module.weight = module.weight * factor
    return module


def test_a_module_that_is_imported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    old = imported(monkeypatch, 1)
    assert torch.equal(tj.jit(old.reads)(X), old.reads(X))
    new = imported(monkeypatch, 10)
    jitted = {m: tj.jit(m.reads) for m in (old, new)}
    for module in (old, new, old):
        assert torch.equal(jitted[module](X), module.reads(X))
    assert torch.equal(tj.jit(new.writes)(X), X * 2 + 3)
    assert torch.equal(new.weight, X * 2)
    assert torch.equal(old.weight, torch.ones(3) * 2)

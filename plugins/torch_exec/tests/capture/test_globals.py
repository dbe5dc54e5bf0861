"""Globals of functions in modules with equal names, or made by ``exec``."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager

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


HIDDEN = {
    "a function": ("len((1, 2))", "len", "lambda found: 5"),
    "a class": ("float(2)", "float", "lambda found: 5.0"),
    "a loop": ("sum(i for i in range(3))", "range", "lambda end: [7]"),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("place", ["the program", "a module", "a dict"])
@pytest.mark.parametrize("after", ["", "torch._dynamo.graph_break(); "], ids=["", "a break"])
@pytest.mark.parametrize("name", HIDDEN)
def test_a_global_that_hides_a_builtin_is_called(name: str, after: str, place: str) -> None:
    value, hidden, other = HIDDEN[name]
    body = f"def {{}}(x): {after}return x * {value}\n"
    scope = {
        "the program": "scope = globals()\n",
        "a module": "import sys, types\nm = sys.modules['hiding'] = types.ModuleType('hiding')\n"
        "scope = vars(m)\nscope['torch'] = torch\n",
        "a dict": "scope = {'__name__': 'math', 'torch': torch}\n",
    }[place]
    text = f"x = torch.ones(2)\n{scope}exec({body.format('g')!r}, scope)\ng = scope['g']\n"
    text += "def f(x): return g(x) + 1\n"
    calls = (f"scope.update({hidden}={other})", "f(x)", f"scope.pop({hidden!r}) and None", "f(x)")
    try:
        equal_to_eager(text, "f(x)", *calls)()
    finally:
        sys.modules.pop("hiding", None)


def test_a_global_that_the_program_sets_hides_a_builtin() -> None:
    text = (
        "x = torch.ones(2)\ndef f(x):\n    global max\n    max = len\n    return x * max((1, 5))\n"
    )
    equal_to_eager(text, "f(x)", "f(x)")()


def test_a_builtin_that_two_modules_call(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (types.ModuleType(name) for name in ("counting", "counting_too"))
    for module in (one, other):
        exec("def twice(x):\n    return x * len((1, 2))\n", vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    @tj.jit(strict=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        return other.twice(one.twice(x))

    assert torch.equal(f(X), X * 4)
    monkeypatch.setattr(other, "len", lambda pair: 3, raising=False)
    assert torch.equal(f(X), X * 6)

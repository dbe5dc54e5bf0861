"""Objects that a program makes end when Python frees them, in each call."""

from __future__ import annotations

import gc
import weakref

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager, scope_of

pytestmark = [pytest.mark.sampled(2), pytest.mark.usefixtures("lenient", "forgotten")]

START = """
import weakref
x = torch.arange(3.0)
ends = []
class Ending:
    def __init__(self, number=1): self.number = number
    def __del__(self): ends.append(self.number)
    def __repr__(self): return str(self.number)
class Plain: pass
def make(): return Ending(5)
"""

PROGRAMS = {
    "in an expression": "Ending()\n    return x * len(ends)",
    "deleted": (
        "a = Ending(1)\n    y = x * 2\n    del a\n    b = Ending(2)\n    y = y + len(ends)\n"
        "    b = None\n    return y * len(ends)"
    ),
    "made in another function": "a = make()\n    y = x * 2\n    del a\n    return y + len(ends)",
    "returned": "a = Ending()\n    a.y = x * 2\n    return a.y, a, len(ends)",
    "a weak reference": (
        "a = Plain()\n    found = weakref.ref(a)\n    y = x * (found() is a)\n    del a\n"
        "    return y + (1 if found() is None else 5)"
    ),
    "a weak reference to a tensor": (
        "y = x * 2\n    found = weakref.ref(y)\n    del y\n    return x * (found() is None)"
    ),
    "a callback": (
        "a = Plain()\n    r = weakref.ref(a, lambda _: ends.append(3))\n    y = x * 2\n    del a\n"
        "    return y * len(ends)"
    ),
    "after a graph break": (
        "torch._dynamo.graph_break()\n    a = Ending(1)\n    y = x * 2\n    del a\n"
        "    return y * len(ends)"
    ),
    "before a graph break": (
        "a = Ending(1)\n    y = x * 2\n    torch._dynamo.graph_break()\n    del a\n"
        "    return y * len(ends)"
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ends_of_objects(name: str) -> None:
    text = f"{START}def f(x):\n    {PROGRAMS[name]}"
    changes = ("setattr(Ending, 'more', 1)", "f(x)", "ends")
    equal_to_eager(text, "f(x)", "ends", "f(x)", "f(x)", "ends", *changes)()


@pytest.mark.parametrize(
    "result", ["(x + n for n in range(2))", "torch._dynamo.graph_break() or [x + 1, Ending()][1]"]
)
def test_what_a_program_that_is_left_to_python_returns(result: str) -> None:
    with scope_of(f"{START}def f(x):\n    return {result}") as scope:
        jitted = tj.jit(scope["f"], plugins=["torch"])
        gc.collect()
        gc.disable()
        try:
            with pytest.warns(tj.TjWarning, match="graph break"):
                result = weakref.ref(jitted(scope["x"]))
            assert result() is None, "an error of capture keeps the frames of the call"
        finally:
            gc.enable()


def test_a_warning_says_why() -> None:
    with scope_of(f"{START}def f(x):\n    a = make()\n    return x * 2") as scope:
        jitted = tj.jit(scope["f"], plugins=["torch"])
        with pytest.warns(
            tj.TjWarning, match="Ending.__del__ runs when an object is freed"
        ) as seen:
            jitted(torch.ones(3))
            jitted(torch.ones(3))
    assert len(seen) == 1
    assert scope["ends"] == [5, 5]

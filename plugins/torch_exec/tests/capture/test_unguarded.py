"""Reads of what changes between calls: in Python's modules, of functions and of objects."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager

SIGNATURE = """
import inspect
def made(n):
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter('a', kind, default=n)])
"""

PROGRAMS = {
    "os.getenv": (
        "import os\ndef f(x): return x * float(os.getenv('TJ_TRIED', '1'))",
        "f(x)", "os.environ.update(TJ_TRIED='2')", "f(x)", "os.environ.pop('TJ_TRIED') and None",
        "f(x)",
    ),
    "a name in tempfile": (
        "import tempfile\nbefore = tempfile.template\n"
        "def f(x): return x * len(tempfile.gettempprefix())",
        "f(x)", "setattr(tempfile, 'template', 'abcdefg')", "f(x)",
        "setattr(tempfile, 'template', before)", "f(x)",
    ),
    "copyreg": (
        "import copy, copyreg\nclass C: n = 1\nclass D(C): n = 2\nc = C()\n"
        "def f(x): return x * copy.copy(c).n",
        "f(x)", "copyreg.pickle(C, lambda c: (D, ()))", "f(x)",
        "copyreg.dispatch_table.pop(C) and None", "f(x)",
    ),
    "annotations": (
        "def g(a: 2): return a\ndef f(x): return x * g.__annotations__['a']",
        "f(x)", "g.__annotations__.update(a=3)", "f(x)",
        "setattr(g, '__annotations__', {'a': 5})", "f(x)",
    ),
    "qualified name": (
        "def g(a): return a\ndef f(x): return x * len(f'{g.__qualname__}')",
        "f(x)", "setattr(g, '__qualname__', 'g.of.another')", "f(x)",
    ),
    "wrapped function": (
        "import functools\ndef g(a):\n    'Text.'\n    return a * 3\ndef f(x):\n"
        "    @functools.wraps(g)\n    def h(a): return g(a) + 1\n"
        "    return h(x) * len(h.__qualname__ + h.__doc__)",
        "f(x)", "setattr(g, '__qualname__', 'g.of.another')", "f(x)",
    ),
    "recursion limit": (
        "import sys\nbefore = sys.getrecursionlimit()\n"
        "def f(x): return x * sys.getrecursionlimit()",
        "f(x)", "sys.setrecursionlimit(before + 5)", "f(x)", "sys.setrecursionlimit(before)",
    ),
    "signature": (
        SIGNATURE + "def f(x, s): return x * s.parameters['a'].default",
        "f(x, made(2))", "f(x, made(3))", "f(x, made(2))",
    ),
    "parameter": (
        SIGNATURE + "def f(x, p): return x * p.default",
        "f(x, made(2).parameters['a'])", "f(x, made(3).parameters['a'])",
    ),
    "signature of a function": (
        "import inspect\ndef g(a, b=2): return a\ndef f(x):\n    s = inspect.signature(g)\n"
        "    torch._dynamo.graph_break()\n    return x * s.parameters['b'].default",
        "f(x)", "setattr(g, '__defaults__', (5,))", "f(x)",
    ),
    "match": (
        "import re\ndef f(x, m): return x * int(m.group(1))",
        "f(x, re.match('(.)', '2'))", "f(x, re.match('(.)', '5'))", "f(x, re.match('(.)', '7'))",
    ),
    "range": (
        "def f(x, r): return x * sum(r)",
        "f(x, range(3))", "f(x, range(1, 5))", "f(x, range(0, 7, 2))", "f(x, range(5, 0, -1))",
    ),
    "a cached function that reads a closure": (
        "import functools\ndef make():\n    k = [2]\n    @functools.cache\n"
        "    def g(n): return n * k[0]\n    return k, g, lambda x: x * g(1)\nk, g, f = make()",
        "f(x)", "k.__setitem__(0, 5)", "f(x)", "g.cache_clear()", "f(x)",
    ),
}  # fmt: skip
"""Text of a program, and the calls."""


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_read_is_that_of_the_call(name: str) -> None:
    text, *calls = PROGRAMS[name]
    equal_to_eager(f"x = torch.ones(2)\n{text}\n", *calls)()


def test_a_range_is_captured() -> None:
    jitted = tj.jit(lambda x, r: x * sum(r))
    for given in (range(3), range(1, 5)):
        assert torch.equal(jitted(torch.ones(2), given), torch.full((2,), float(sum(given))))
    assert not tj.stats(jitted).fallbacks
    assert tj.stats(jitted).entries == 2

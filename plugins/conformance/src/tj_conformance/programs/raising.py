"""Programs that raise for some data, alone or where a handler of theirs sees it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tj_conformance.programs.observations import SeenProgram

__all__ = ["ASSERTIONS", "CALLS", "SURROUNDINGS", "raising_programs"]

CALLS: Mapping[str, str] = MappingProxyType(
    {
        "index": "y = x[i]",
        "index of a row": "y = x.expand(2, 4)[:, i].sum(0)",
        "embedding": "y = torch.nn.functional.embedding(i, x[:, None]).flatten()",
        "gather": "y = x.gather(0, i)",
        "index_select": "y = torch.index_select(x, 0, i)",
        "select": "y = x[:2][i < 9].select(0, 1)[None] * x",
        "as_strided": "y = x[:2][i < 9].as_strided((2,), (1,)) * 2",
        "index_add": "y = x.index_add(0, i, x[:2] * 2)",
        "setitem": "y = x.clone(); y[i] = 3.0",
        "cross entropy": "y = torch.nn.functional.cross_entropy(x.expand(2, 4), i)[None] * x",
        "cholesky": "y = torch.linalg.cholesky(torch.eye(2) * (4 - i[1])).sum() * x",
        "inverse": "y = torch.linalg.inv(torch.eye(2) * (i[1] - 9).float()).sum() * x",
        "division": "y = (7 // (i - 9)).float() + x[:2]",
        "remainder": "y = (7 % (i - 9)).float() + x[:2]",
        "multinomial": "y = torch.multinomial(4.0 - i, 1).float() * x[:1]",
        "bernoulli": "y = torch.bernoulli((i == 9) * 2.0) + x[:2]",
        "torch._assert": "torch._assert(i[1] < 9, 'too large'); y = x * 2",
    }
)
"""Statements that raise where ``i[1]`` is 9."""

ASSERTIONS: Mapping[str, str] = MappingProxyType(
    {
        "assert": "assert i[1] < 9; y = x * 2",
        "assert with text": "assert (i < 9).all(), 'too large'; y = x * 2",
        "assert with a value": "assert i[1] < 9, (1, 'large'); y = x * 2",
        "assert with data": "assert i[1] < 9, f'too large: {i[1].item()}'; y = x * 2",
        "assert of a number": "assert i[1].item() < 9, 'number'; y = x * 2",
        "assert of two": "assert i[0] < 9 and i[1] < 9, 'either'; y = x * 2",
        "assert of none": "assert not (i == 9).any(); y = x * 2",
        "two asserts": "assert i[0] >= 0, 'a'; y = x * 2; assert i[1] < 9, 'b'; y = y.sin()",
        "assert after a write": "x.mul_(2); assert i[1] < 9; x.add_(1); y = x * 2",
        "assert in a function": "y = checked(x, i)",
        "assert of isfinite": "assert torch.isfinite(x / (9.0 - i[1])).all(), 'inf'; y = x * 2",
    }
)
"""Assertions that fail where ``i[1]`` is 9."""

SURROUNDINGS: Mapping[str, str] = MappingProxyType(
    {
        "plain": "{}",
        "except": "try:\n    {}\nexcept (IndexError, RuntimeError, AssertionError) as e:\n"
        "    return x * 0, type(e).__name__, len(e.args)",
        "except another": "try:\n    {}\nexcept KeyError:\n    return x * 3",
        "else": "try:\n    {}\nexcept Exception:\n    log.append('except')\n    raise\nelse:\n"
        "    log.append('else')",
        "raise from": "try:\n    {}\nexcept Exception as e:\n"
        "    raise ValueError('wrong', len(e.args)) from e",
        "suppress": "y = x - 1\nwith contextlib.suppress(IndexError, RuntimeError, AssertionError):"
        "\n    {}",
        "class": "y = x - 1\nwith Swallows():\n    {}",
        "generator": "with counted():\n    {}",
        "no_grad": "with torch.no_grad():\n    {}",
        "record_function": "with torch.profiler.record_function('part'):\n    {}",
        "handler around no_grad": "try:\n    with torch.no_grad():\n        {}\n"
        "except Exception:\n    return x - torch.is_grad_enabled()",
        "no_grad around a handler": "with torch.no_grad():\n    try:\n        {}\n"
        "    except Exception:\n        y = x * 5",
        "loop": "y = x\nfor k in range(2):\n    try:\n        {}\n    except Exception:\n"
        "        log.append(k)\n        continue\n    y = y + k",
    }
)
"""Statements around the failing ones."""

_HEAD = """\
import contextlib
import torch

log = []
other = torch.zeros(2)

class Swallows:
    def __enter__(self):
        log.append("enter")
    def __exit__(self, kind, *rest):
        log.append(str(kind))
        return kind is not None

@contextlib.contextmanager
def counted():
    log.append("enter")
    try:
        yield
    finally:
        log.append("exit")

def checked(x, i):
    assert i[1] < 9, "in a function"
    return x * 2

def state():
    return list(log), other.clone()

def leaf():
    return torch.arange(1.0, 5.0).requires_grad_()

"""

_WHERE: Mapping[str, str] = MappingProxyType(
    {
        "there": "def program(x, i):\n    x = x.sin()\n{body}\n    return y + 1\n",
        "inside": "def inner(x, i):\n{body}\n    return y\n\n"
        "def program(x, i):\n    r = inner(x.sin(), i)\n"
        "    return r[0] * 2 if isinstance(r, tuple) else r * 2\n",
        "outside": "def inner(x, i):\n    {call}\n    return y\n\n"
        "def program(x, i):\n    x = x.sin()\n{body}\n    return y + 1\n",
    }
)
"""Places of the statements, or of the call alone: the program, or a function that it calls."""

_GOOD, _BAD = "torch.tensor([0, 3])", "torch.tensor([1, 9])"


def raising_programs() -> Iterator[SeenProgram]:
    """Each statement in each surrounding, the three ways, with and without gradients."""
    statements = {**CALLS, **ASSERTIONS}
    for (name, call), (around, text), where in itertools.product(
        statements.items(), SURROUNDINGS.items(), _WHERE
    ):
        inner = "y = inner(x, i)" if where == "outside" else call
        body = textwrap.indent(text.format(inner), "    ")
        made = _HEAD + _WHERE[where].format(body=body, call=call)
        for leaf in ("leaf()", "leaf().detach()"):
            calls = tuple(f"({leaf}, {i})" for i in (_GOOD, _BAD, _GOOD, _BAD))
            grad = "grad" if leaf == "leaf()" else "no grad"
            yield SeenProgram(f"{name}, {around}, {where}, {grad}", made, calls)

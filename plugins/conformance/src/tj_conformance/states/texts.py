"""Made-up programs whose state changes between calls, as Python text."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_conformance.states.containers import CONTAINERS
from tj_conformance.states.general import CHANGES
from tj_conformance.states.layers import LAYERS
from tj_conformance.states.running import WAYS
from tj_conformance.states.tensors import TENSORS
from tj_conformance.states.values import VALUES

if TYPE_CHECKING:
    from tj_conformance.states.part import Part

__all__ = ["CHUNK", "PARTS", "Program", "Step", "made"]

CHUNK = 50
"""Number of programs of one seed."""

PARTS: Mapping[str, Part] = {**LAYERS, **TENSORS, **VALUES, **CONTAINERS}

_PLAIN = ("rows=3", "rows=3", "rows=3", "rows=3, grad=True", "rows=3, grad=True")
_CALLS = (
    *_PLAIN,
    *("rows=1", "rows=0", "rows=7, grad=True", "rows=3, second='same'", "rows=3, second='other'"),
    *("rows=3, times=2", "rows=3, grad=True, backward=False", "rows=3, second='keyword'"),
    *("rows=3, dtype=True", "rows=3, step=True", "rows=3, kind='parameter'"),
    *("rows=3, kind='transposed'", "rows=3, kind='inner'", "rows=3, kind='batch'"),
    "rows=3, grad=True, twice=True",
)
"""Arguments of `tj_conformance.states.running.World.call`."""

_HEAD = """\
import collections
import copy
import dataclasses
import enum
import functools
import pickle
import types
from pathlib import Path

import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as P
from tj_conformance.states.running import compare
from torch import nn

LOG = []
G = 2.0
GT = torch.full((4,), 0.5)
GD = {"a": 1.0, "b": 0.5}


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Cfg:
    scale: float = 1.0
    act: str = "relu"
    flags: tuple = (1, 2)


class Box:
    def __init__(self, v):
        self.v = v

    def get(self):
        return self.v


class Slots:
    __slots__ = ("v", "t")

    def __init__(self, v):
        self.v = v


class Scaled(nn.Module):
    def forward(self, w):
        return w * 2


class Other(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 0.5


class Act(nn.Module):
    k = 1

    def forward(self, x):
        return x.tanh() * self.k


def helper(x, c=2.0):
    return x * c


def make_closure():
    v = 1.5

    def get(x):
        return x * v

    def put(n):
        nonlocal v
        v = n

    return get, put


GET, PUT = make_closure()


def fwd_hook(m, a, o):
    LOG.append("forward")
    return o * 2


def fwd_look(m, a, o):
    LOG.append("look")


def pre_hook(m, a):
    LOG.append("before")
    return (a[0] + 1, *a[1:])


def bwd_hook(m, gi, go):
    LOG.append("backward")
    return tuple(None if g is None else g * 2 for g in gi)


def bwd_pre(m, go):
    LOG.append("before backward")
    return tuple(None if g is None else g * 3 for g in go)


def t_hook(g):
    LOG.append("gradient")
    return g * 2


def acc_hook(p):
    LOG.append("accumulated")
"""

_END = """\


class Sub(Net):
    def forward(self, x, y=None):
        return super().forward(x) if y is None else super().forward(x, y=y)


"""


@dataclass(frozen=True, slots=True)
class Step:
    """Changes, and the call after them."""

    changes: tuple[str, ...]
    call: str


@dataclass(frozen=True, slots=True)
class Program:
    """A module of ``parts``, jitted in the way ``way``, that changes in ``steps``."""

    parts: tuple[str, ...]
    way: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        """A file with a test, ready to be run."""
        return "\n".join([_HEAD, "", *self._module(), _END + "\n".join(self._steps())])

    def _module(self) -> Iterator[str]:
        numbered = [(PARTS[name], i) for i, name in enumerate(self.parts)]
        yield "class Net(nn.Module):"
        for part, i in numbered:
            yield from _inside(1, part.numbered(part.members, i))
        yield from _inside(1, ["def __init__(self):"])
        yield from _inside(2, ["super().__init__()"])
        for part, i in numbered:
            yield from _inside(2, part.numbered(part.init, i))
        yield from _inside(2, ["self.last = nn.Linear(4, 4)"])
        yield from _inside(1, ["", "def forward(self, x, y=None):"])
        yield from _inside(2, ["out = []"])
        for part, i in numbered:
            yield from _inside(2, part.numbered(part.forward, i))
        yield from _inside(2, ["x = x if y is None else x + y", "return (x, *out) if out else x"])
        yield from _inside(1, ["", "def forward2(self, x, y=None):"])
        yield from _inside(2, ["return self.last(x)"])

    def _steps(self) -> Iterator[str]:
        for i, step in enumerate(self.steps):
            yield f"def change{i}(w):"
            yield from _inside(1, ["m = w.m", *step.changes, "", ""])
        yield f"WAY = {self.way!r}"
        yield f"CHANGES = [{', '.join(f'change{i}' for i in range(len(self.steps)))}]"
        calls = ", ".join(f"dict({step.call})" for step in self.steps)
        yield f"CALLS = [{calls}]"
        yield "\n\ndef test_program():"
        yield "    assert not compare(Path(__file__).read_text())\n"


def _inside(depth: int, lines: list[str]) -> list[str]:
    return textwrap.indent("\n".join(lines), "    " * depth).splitlines()


def made(number: int, way: str | None = None) -> Program:
    """Make the program of a number, in the ``way`` that the number says if none is given."""
    random_ = random.Random(number * 7919 + 13)
    chosen = random_.choice([*WAYS])
    parts = random_.choices([*PARTS], k=random_.choice((1, 1, 2, 2, 3)))
    own = [
        line
        for i, part in enumerate(map(PARTS.__getitem__, parts))
        for line in part.numbered(part.changes, i)
    ]
    steps = []
    for i in range(random_.randint(6, 10)):
        count = random_.choice((1, 1, 1, 2)) if i and random_.random() < 0.85 else 0
        changes = tuple(_change(random_, own) for _ in range(count))
        steps.append(Step(changes, random_.choice(random_.choice((_PLAIN, _CALLS)))))
    return Program(tuple(parts), way or chosen, tuple(steps))


def _change(random_: random.Random, own: list[str]) -> str:
    return random_.choice(own if own and random_.random() < 0.7 else CHANGES)

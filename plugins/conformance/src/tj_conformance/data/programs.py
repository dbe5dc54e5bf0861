"""Made-up programs whose sizes and control flow depend on data, as Python text.

A program is a function of two matrices, a mask, counts and a number, or a module with layers. It is
called with different numbers of rows, none included. Each runs in one of the ways of
`tj_conformance.ways.running`.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tj_core as tj

from tj_conformance.data import texts
from tj_conformance.programs.modules import module_of
from tj_conformance.ways.running import WAYS, Jit, compare

if TYPE_CHECKING:
    from tj_conformance.programs.aliasing import Report

__all__ = ["ACCEPTED", "Program", "compare_with_parts", "made", "run", "unexpected"]

ACCEPTED = (
    "graph break",
    # Results are eager's, and docs/limits.md and docs/autocast.md have the reasons.
    "the program asserts which number one that depends on data is",
    "may share casts with other calls, of which not all are known",
)
"""Parts of the reasons of fallbacks that are no fault."""

_IMPORTS = """\
import functools

import torch
from tj_conformance.data.programs import compare_with_parts
from tj_conformance.programs.aliasing import Scene
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.utils.checkpoint import checkpoint
"""

_SCENES = ((4, 2, 2), (1, 1, 1), (0, 0, 0), (5, 1, 3), (2, 0, 1), (3, 3, 0))
"""Rows, true elements of the mask, and the number, call by call."""


@dataclass(frozen=True, slots=True)
class Program:
    """``setup`` makes the arguments; ``layers``: it is a module.

    ``double``: gradients of gradients are compared, too.
    """

    setup: tuple[str, ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    scenes: tuple[tuple[int, int, int], ...]
    layers: bool
    double: bool
    way: str = "plain"

    def __str__(self) -> str:
        """A file with a test, ready to be run."""
        body = [*self.lines, f"return {', '.join(self.returned)},"]
        parts = [
            f"{_IMPORTS}\nDTYPE = torch.{WAYS[self.way].dtype}\n",
            "\n".join(["def make(n, true, number):", *_indented(self.setup)]),
            texts.FUNCTIONS,
        ]
        if self.layers:
            parts += [texts.LAYERS + "\n".join(_indented(body, 8)), "def build(jit):"]
            parts[-1] += "\n    return Net(jit)"
        else:
            parts.append("\n".join(["def program(x, w, m, c, t):", *_indented(body)]))
            parts.append("def build(jit):\n    return program")
        parts.append(f"scenes = [functools.partial(make, *scene) for scene in {self.scenes}]")
        said = f'compare_with_parts("{self.way}", build, scenes, double={self.double})'
        parts.append(f'def test_program():\n    assert str({said}) == "equal"\n')
        return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _indented(lines: Sequence[str], by: int = 4) -> list[str]:
    return [" " * by + line for line in lines]


def compare_with_parts(
    way: str,
    build: Callable[[Jit], Any],
    scenes: Sequence[Callable[[], Any]],
    *,
    jit: Jit = tj.jit,
    double: bool = False,
) -> Report:
    """Compare a program with parts that are jitted by themselves with eager.

    ``build`` is given what jits its parts, which leaves them as they are for eager's side.
    """
    # `check` builds a program for eager first, then one for the candidate.
    sides: Iterator[Jit] = itertools.cycle([lambda part: part, jit])
    return compare(way, lambda: build(next(sides)), scenes, jit=jit, double=double)


def run(program: Program, jit: Jit = tj.jit) -> Report:
    """Compare ``program`` in its way with eager."""
    with module_of(str(program)) as module:
        space = vars(module)
        return compare_with_parts(
            program.way, space["build"], space["scenes"], jit=jit, double=program.double
        )


def unexpected(report: Report) -> list[str]:
    """Reasons of fallbacks that no program of this family may have."""
    return [r for r in report.fallbacks if not any(accepted in r for accepted in ACCEPTED)]


def made(seed: int, number: int) -> Program:
    """The program of this seed and number, the same in each process."""
    ways = list(WAYS)
    return _Maker(random.Random(f"{seed}.{number}"), ways[number % len(ways)]).program()


class _Maker:
    """A program in the making: its lines, and the names of its values."""

    def __init__(self, draw: random.Random, way: str) -> None:
        self.draw, self.way = draw, way
        # A few calls only, so that two are alike now and then.
        calls: tuple[str, ...] = (*texts.CALLS, *texts.INSIDE)
        if way in ("checkpoint", "inference"):
            # Eager refuses gradients of `torch.func` in a checkpoint; in inference mode their
            # results are of another mode (docs/limits.md).
            calls = tuple(c for c in calls if not re.search(r"torch\.func\.(grad|vjp)", c))
        self.calls = draw.sample(calls, draw.choice((4, 8, 16, len(calls))))
        more = () if way.startswith("backend") else texts.HANDLED
        self.statements = (*texts.FLOW, *more)
        self.share_of_flow = draw.choice((0.1, 0.25, 0.4))
        self.writes_arguments = draw.random() < 0.3
        self.writes = False
        self.lines: list[str] = []
        self.names = ["x"]
        self.numbers: list[str] = []
        self.floats: list[str] = []
        self.ends: dict[str, int] = {}
        """Number of the line after the statement that makes a value."""

    def program(self) -> Program:
        for _ in range(self.draw.randint(2, 7)):
            self.statement()
        values = self.names[1:]
        returned = self.draw.sample(values, min(len(values), self.draw.randint(0, 2)))
        # A call that nobody needs is removed with its error for some sizes.
        returned += [v for v in values if v not in returned and not self.is_used(v)]
        if self.draw.random() < 0.3:
            returned.append(self.filled(self.draw.choice(texts.RETURNED)))
        if not returned or self.draw.random() < 0.1:
            returned.append("x")
        named = (*self.lines, *returned)
        return Program(
            self.setup(),
            tuple(self.lines),
            tuple(returned),
            tuple(self.draw.sample(_SCENES, 3)),
            any(name in line for line in named for name in ("linear(", "layer,", "inner(")),
            # A value that is written may be one that tj needs for second gradients, not eager.
            not self.writes and self.draw.random() < 0.5,
            self.way,
        )

    def is_used(self, name: str) -> bool:
        return any(re.search(rf"\b{name}\b", line) for line in self.lines[self.ends[name] :])

    def setup(self) -> tuple[str, ...]:
        """Lines that make the arguments and return a scene."""
        kinds = ("plain", "inner") if self.writes_arguments else ("plain", "leaf", "leaf", "inner")
        kind, weight = self.draw.choice(kinds), self.draw.random() < 0.6
        inner = kind == "inner"
        return (
            "torch.manual_seed(n + 7)",
            f"x = torch.randn(n, 3, dtype=DTYPE, requires_grad={kind != 'plain'})",
            f"w = torch.randn(3, 3, dtype=DTYPE, requires_grad={weight})",
            *(("x_ = x", "x = x_ * 1") if inner else ()),
            "m = torch.arange(n) < true",
            "c = torch.arange(n) % 3",
            "t = torch.tensor(number)",
            f"return Scene((x, w, m, c, t), ({'x_, ' if inner else ''}x, w))",
        )

    def statement(self) -> None:
        """Add a statement of several lines, a write, or a call."""
        before = len(self.names)
        self.add()
        self.ends |= dict.fromkeys(self.names[before:], len(self.lines))

    def add(self) -> None:
        kind = self.draw.random()
        if kind < self.share_of_flow:
            self.flow()
        elif kind < self.share_of_flow + 0.15 and (self.writes_arguments or self.names[1:]):
            self.write()
        else:
            call = self.filled(self.draw.choice(self.calls))
            mode = "with torch.no_grad(): " if self.draw.random() < 0.06 else ""
            self.lines.append(f"{mode}{self.fresh()} = {call}")

    def flow(self) -> None:
        text = self.draw.choice(self.statements)
        v, w = f"v{len(self.names)}", f"v{len(self.names) + 1}"
        self.lines += self.filled(text, v=v, w=w).split("\n")
        self.names += [v, w] if "{w}" in text else [v]
        self.writes |= "_(" in text or "] =" in text

    def write(self) -> None:
        target = self.draw.choice(self.names if self.writes_arguments else self.names[1:])
        if target != "x" and self.draw.random() < 0.5:
            self.lines.append(f"{target} = {target}.clone()")
        self.lines.append(self.filled(self.draw.choice(texts.WRITES), a=target))
        self.writes = True

    def filled(self, text: str, **names: str) -> str:
        """``text`` with values, of which the last ones are likelier, and numbers."""
        a = names.setdefault("a", self.one())
        found: dict[str, Callable[[], str]] = {
            "b": self.one,
            "n": self.number,
            "f": self.float,
            "m": functools.partial(self.of_rows, a, "m", texts.MASKS),
            "k": functools.partial(self.of_rows, a, "c", texts.COUNTS),
        }
        if "{s}" in text:
            text = text.replace("{s}", "min({n}, len({a}))")
        for name, make in found.items():
            if f"{{{name}}}" in text:
                names.setdefault(name, make())
        return text.format(**names)

    def one(self) -> str:
        return self.draw.choice(self.names[-3:] if self.draw.random() < 0.7 else self.names)

    def of_rows(self, matrix: str, given: str, table: Sequence[str]) -> str:
        """A mask or counts of the rows of ``matrix``, or those that are ``given`` for ``x``."""
        if matrix == "x" and self.draw.random() < 0.5:
            return given
        return self.draw.choice(table).format(a=matrix)

    def number(self) -> str:
        """An integer, mostly an earlier one."""
        if self.numbers and self.draw.random() < 0.8:
            return self.draw.choice(self.numbers[-3:])
        before = self.draw.choice(self.numbers) if self.numbers else "1"
        name = f"n{len(self.numbers) + 2}"
        made = self.filled(self.draw.choice(texts.NUMBERS), n=before)
        self.lines.append(f"{name} = {made}")
        self.numbers.append(name)
        return name

    def float(self) -> str:
        if self.floats and self.draw.random() < 0.7:
            return self.draw.choice(self.floats)
        name = f"f{len(self.floats)}"
        made = self.filled(self.draw.choice(texts.FLOATS))
        self.lines.append(f"{name} = {made}")
        self.floats.append(name)
        return name

    def fresh(self) -> str:
        """The name of a new value."""
        self.names.append(f"v{len(self.names)}")
        return self.names[-1]

"""Made-up programs of mixed data types, as Python text.

A program is made line by line. Each line runs in eager at once: what raises is left out, but for
the last line of some programs, and a later line may read its result.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tj_conformance.dtypes.arguments import DTYPES, LAYOUTS, SHAPES, Argument
from tj_conformance.dtypes.calls import GROUPS, WRITES
from tj_conformance.ways.running import WAYS

__all__ = ["Program", "programs"]

NUMBERS = (
    "[1, 0, 2]",
    "[2, -1, 1]",
    "[0.0, -0.0, 2.5]",
    "[1.5, math.nan, math.inf]",
    "[True, False, True]",
    "[3, 300, 2**33]",
    "[-3, 5, 0]",
    "[1j, 2 + 1j, 0j]",
)
"""The number that a program is given, call by call."""

LITERALS = (
    "2", "-1", "3", "0", "1", "0.5", "-0.0", "True", "1j", "300", "2**40", "math.inf", "math.nan",
    "2.0", "-7", "1e-3", *["k"] * 4,
)  # fmt: skip

FREQUENT = ("plain", "plain", "plain", "dynamic", "backend", "autocast", "no_grad")
"""Ways to run a program (`tj_conformance.ways.running`)."""

LARGEST = 70_000
"""Largest number of elements of a value."""

DIVIDES = (" // ", " % ", "fmod", "remainder", "floor_divide", "rounding_mode", "gcd", "lcm")


@dataclass(frozen=True, slots=True)
class Program:
    """``lines`` compute ``returned`` of ``arguments`` and of the number ``k``.

    ``numbers`` is the text of the list of its values. ``grad``: the arguments need gradients.
    """

    arguments: tuple[Argument, ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    numbers: str
    way: str
    grad: bool

    def __str__(self) -> str:
        """A file with a test, ready to be run."""
        made = ["ARGUMENTS = (", *(f"    {argument!r}," for argument in self.arguments), ")"]
        imports = [
            "import math",
            "",
            "import torch",
            "import torch.nn.functional as F",
            "from tj_conformance.dtypes.arguments import Argument",
            "from tj_conformance.dtypes.running import compare",
        ]
        test = [
            "def test_program() -> None:",
            f'    found = compare("{self.way}", program, ARGUMENTS, {self.numbers}, {self.grad})',
            "    assert list(found) == []",
        ]
        return "\n".join([*imports, "", *made, "", "", *self._function(), "", "", *test, ""])

    def _function(self) -> list[str]:
        names = ", ".join(_names(len(self.arguments)))
        body = [*self.lines, f"return {', '.join(self.returned)},"]
        return [f"def program({names}, k):", *(f"    {line}" for line in body)]


def programs(seed: int, count: int) -> Iterator[Program]:
    """Make ``count`` programs of one ``seed``."""
    chance = random.Random(seed)
    made = 0
    while made < count:
        program = _Maker(random.Random(chance.random())).program()
        if program is not None:
            made += 1
            yield program


def _names(count: int) -> str:
    return "abcd"[:count]


class _Maker:
    """A program in the making, with the values of its first call."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.dtypes = [chance.choice(DTYPES) for _ in range(chance.choice((1, 2, 2, 3, 4)))]
        self.way = chance.choice(FREQUENT)
        self.grad = self.way != "no_grad" and chance.random() < 0.35
        self.arguments = self._arguments()
        # `torch.compile` takes a program that was captured for 0.0 when it is called with -0.0.
        apart = self.way != "backend"
        self.numbers = chance.choice([n for n in NUMBERS if apart or "-0.0" not in n])
        self.names = list(_names(len(self.arguments)))
        self.values: dict[str, Any] = _space()
        exec(f"k = {self.numbers}[0]", self.values)
        for name, argument in zip(self.names, self.arguments, strict=True):
            self.values[name] = given(argument.make(), self.grad)
        self.lines: list[str] = []
        self.read: set[str] = set()
        # A few calls only are likelier than others, so that some stand together.
        groups = dict.fromkeys(GROUPS)
        few = (chance.sample(g, min(len(g), chance.choice((2, 5, 12)))) for g in groups)
        self.few = [call for calls in few for call in calls]

    def _arguments(self) -> tuple[Argument, ...]:
        chance = self.chance
        shape = (2**15 + 17,) if chance.random() < 0.02 else chance.choice(SHAPES)
        special = chance.choice((0, 0.3, 0.3, 0.6))
        found = []
        for _ in range(chance.choice((2, 3, 3, 4))):
            shapes = [shape] * 8 + [(), shape[1:], (*shape[:-1], 1) if shape else ()]
            layout = chance.choice(("contiguous", "contiguous", *LAYOUTS))
            mine = (chance.choice(self.dtypes), chance.choice(shapes), layout)
            found.append(Argument(*mine, chance.randrange(10**6), special))
        return tuple(found)

    def program(self) -> Program | None:
        """The program; None if no call could be made."""
        wanted, raises = self.chance.randint(2, 9), self.chance.random() < 0.06
        with warnings.catch_warnings(), WAYS[self.way].around():
            warnings.simplefilter("ignore")
            for _ in range(120):
                if len(self.lines) == wanted:
                    break
                self._line(last=raises and len(self.lines) == wanted - 1)
        made = [name for name in self.names if name.startswith("v")]
        # A value that nothing reads is returned: where a program drops it, it may not raise.
        again = self.chance.random() < 0.35
        returned = [name for name in made if again or name not in self.read]
        returned += ["a"] if self.chance.random() < 0.05 else []
        if not returned:
            return None
        parts = (self.arguments, tuple(self.lines), tuple(returned))
        return Program(*parts, self.numbers, self.way, self.grad)

    def _line(self, *, last: bool) -> None:
        """Add a line that runs, or one that raises if it is the ``last``."""
        name = f"v{len(self.lines)}"
        written = [n for n in self.names if n.startswith("v")]
        writes = bool(written) and self.chance.random() < 0.14
        if writes:
            text = self._filled(self.chance.choice(WRITES), self.chance.choice(written))
        else:
            likely = self.few if self.chance.random() < 0.5 else self.chance.choice(GROUPS)
            text = f"{name} = {self._filled(self.chance.choice(likely))}"
        # The gradient of a product with zeros is the product of the others, which may be NaN.
        if self._may_trap(text) or self._views_bits(text) or (self.grad and "prod" in text):
            return
        after = dict(self.values)
        with contextlib.ExitStack() as stack:
            if not last:
                stack.enter_context(contextlib.suppress(Exception))
            try:
                exec(text, after)
                if isinstance(after.get(name), tuple | list):
                    text += f"[{self.chance.randrange(len(after[name]))}]"
                    exec(text, after)
            except Exception:
                if last:
                    self.lines.append(text)
                return
            self._keep(name, text, after, writes)

    def _keep(self, name: str, text: str, after: dict[str, Any], writes: bool) -> None:
        found = after.get(name)
        if not writes and not (isinstance(found, torch.Tensor) and found.numel() < LARGEST):
            return
        self.values = after
        self.lines.append(text)
        self.read |= {n for n in self.names if n in _words(text.partition(" = ")[2] or text)}
        if not writes:
            self.names.append(name)

    def _filled(self, call: str, written: str = "") -> str:
        chance = self.chance
        recent = self.names[-4:] if chance.random() < 0.6 else self.names
        a, b, c = chance.choice(recent), chance.choice(recent), chance.choice(self.names)
        return call.format(
            a=a,
            b=b,
            c=c,
            d=self._divisor(b),
            t=written,
            s=chance.choice(LITERALS),
            u=chance.choice(LITERALS),
            dt="torch." + chance.choice((*self.dtypes * 2, *DTYPES)),
        )

    def _divisor(self, name: str) -> str:
        """An expression of ``name`` that is never -1 if it is an integer: the smallest one divided
        by it ends the process.
        """
        value = self.values[name]
        if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool:
            return name
        return self.chance.choice((f"(({name} & 6) - 9)", f"({name}.abs() + 1)"))

    def _may_trap(self, text: str) -> bool:
        """Test if ``text`` may end the process: it divides integers by a number, or takes their
        common divisor. Shifts of bools, which PyTorch's fake kernels refuse, are left out, too.
        """
        words = _words(text)
        read = [self.values[name] for name in self.names if name in words]
        if (" << " in text or " >> " in text) and any(v.dtype is torch.bool for v in read):
            return True
        if not any(word in text for word in DIVIDES):
            return False
        whole = not any(v.is_floating_point() or v.is_complex() for v in read)
        return whole and ("gcd" in text or "lcm" in text or not words.isdisjoint({"k", "-1"}))

    def _views_bits(self, text: str) -> bool:
        """Test if ``text`` views the bits of a computed float: of rounding, or of a NaN."""
        made = [self.values[name] for name in self.names if name in _words(text) and name[0] == "v"]
        return ".view(torch." in text and any(v.is_floating_point() or v.is_complex() for v in made)


def _words(text: str) -> set[str]:
    """The names and numbers of a line."""
    spaced = "".join(c if c.isalnum() or c in "_-" else " " for c in text)
    return set(spaced.split())


def _space() -> dict[str, Any]:
    """The names that a line may use."""
    space: dict[str, Any] = {}
    exec("import math\nimport torch\nimport torch.nn.functional as F", space)
    return space


def given(x: torch.Tensor, grad: bool) -> torch.Tensor:
    """``x``, which needs a gradient if ``grad`` and if it may have one."""
    return x.requires_grad_(grad and (x.is_floating_point() or x.is_complex()))

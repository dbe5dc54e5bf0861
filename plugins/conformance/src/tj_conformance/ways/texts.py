"""Made-up programs that run in one of the ways of `tj_conformance.ways.running`, as Python text.

A program is a function of two matrices and a number, or a module with layers that it calls. It is
called with matrices of several sizes, which may need gradients, overlap, or be one tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tj_core as tj
from hypothesis import strategies as st

from tj_conformance.programs.matrices import Body, bodies
from tj_conformance.programs.modules import module_of
from tj_conformance.ways.running import WAYS, Jit, compare

if TYPE_CHECKING:
    from tj_conformance.programs.aliasing import Report

__all__ = ["Program", "programs", "run"]

Draw = Callable[[Any], Any]

_NUMBERS = (
    "{a} * k",
    "{a} + k * 0.5",
    "{a}.roll(k, 0)",
    "{a} ** (k % 3)",
    "torch.full_like({a}, k) * {b}",
    "{a}[:, k % n][:, None] + {b}",
    "{a}.sum() * k + {b}",
    "{a} * n",
)
"""Calls that use the number ``k`` or the size ``n``."""

# `torch.compile` captures by PyTorch's kernels for fake tensors, of which the one of batch norm
# has wrong strides for a transposed matrix: tj warns, and leaves the program to eager.
_LAYERS = ("linear({a})", "norm({a}.contiguous())", "drop({a})", "linear({a}).relu() + {b}")

_NET = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(4, 4, dtype=DTYPE)
        self.norm = torch.nn.BatchNorm1d(4, dtype=DTYPE, track_running_stats={tracks})
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, a, b, k):
        linear, norm, drop = self.linear, self.norm, self.drop
"""

_SIZES = ((4, 1), (5, 0), (3, 2))
_SIZES_OF_LAYERS = ((4, 1), (4, 0), (4, 2))
"""Sizes of the matrices, and the number, call by call."""

_ARGUMENTS = (
    *[("p", "q")] * 4,
    ("p", "p"),
    ("p", "p.t()"),
    ("p.t()", "q"),
    ("w[1:, :n]", "q"),
    ("w[:n, :n]", "w[:n, :n]"),
    ("w[:n, :n]", "w[1:, 1:]"),
    ("w[:n, :n]", "w[:n, 1:].t()"),
)
"""Two matrices of ``p`` and ``q``, of ``n`` by ``n``, and of ``w``, which is larger by one."""

_KINDS = ("plain", "leaf", "leaf", "inner")
"""Tensors that need no gradient, that are leaves, and that were computed from leaves."""


@dataclass(frozen=True, slots=True)
class Program:
    """``setups`` are the lines that make the arguments, in turn; ``layers``: it is a module.

    ``double``: gradients of gradients are compared, too.
    """

    setups: tuple[tuple[str, ...], ...]
    body: Body
    layers: bool
    double: bool
    way: str = "plain"

    def __str__(self) -> str:
        """A file with a test, ready to be run."""
        imports = [
            "import functools",
            "",
            "import torch",
            "from tj_conformance.programs.aliasing import Scene",
            "from tj_conformance.ways.running import compare",
            "",
            f"DTYPE = torch.{WAYS[self.way].dtype}",
        ]
        return "\n".join([*imports, *self._setups(), *self._function(), *self._test(), ""])

    def _setups(self) -> Iterator[str]:
        for i, setup in enumerate(self.setups):
            yield from ["", "", f"def make{i}(n, k):", *(f"    {line}" for line in setup)]

    def _function(self) -> list[str]:
        lines = ["n = a.shape[0]", *str(self.body).splitlines()]
        if self.layers:
            net = _NET.format(tracks=WAYS[self.way].tracks)
            inside = [*net.splitlines(), *(f"        {line}" for line in lines)]
            return ["", "", *inside, "", "", "build = Net"]
        inside = ["def program(a, b, k):", *(f"    {line}" for line in lines)]
        return ["", "", *inside, "", "", "def build():", "    return program", "", ""]

    def _test(self) -> list[str]:
        made = itertools.cycle(f"make{i}" for i in range(len(self.setups)))
        calls = zip(made, _SIZES_OF_LAYERS if self.layers else _SIZES, strict=False)
        return [
            "scenes = [",
            *(f"    functools.partial({make}, {n}, {k})," for make, (n, k) in calls),
            "]",
            "",
            "",
            "def test_program() -> None:",
            f'    report = compare("{self.way}", build, scenes, double={self.double})',
            '    assert str(report) == "equal"',
        ]


def run(program: Program, jit: Jit = tj.jit) -> Report:
    """Compare ``program`` in its way with eager."""
    with module_of(str(program)) as module:
        space = vars(module)
        build, scenes = space["build"], space["scenes"]
        return compare(program.way, build, scenes, jit=jit, double=program.double)


@st.composite
def programs(draw: Draw) -> Program:
    """Programs of three to nine statements."""
    layers = draw(st.sampled_from((False, False, True)))
    setups, kinds = [], []
    for _ in range(draw(st.integers(1, 2))):
        setup, kind = _setup(draw)
        setups.append(setup)
        kinds.append(kind)
    written = "ab" if "leaf" not in kinds and draw(st.booleans()) else ""
    # Layers are likelier than other calls, so that a program of a module has some of them.
    more = (*_NUMBERS, *_LAYERS * 4) if layers else _NUMBERS
    body = draw(bodies("n", lines=(3, 9), more=more, written=written))
    # A second gradient through a cast is rounded term by term; in eager the sum of them is.
    double = draw(st.integers(0, 2)) == 0 and "bfloat16" not in str(body)
    return Program(tuple(setups), body, layers, double)


def _setup(draw: Draw) -> tuple[tuple[str, ...], str]:
    """Lines that make the arguments and return a scene, and the kind of the tensors."""
    forms = draw(st.sampled_from(_ARGUMENTS))
    kind = draw(st.sampled_from(_KINDS))
    lines, watched = ["torch.manual_seed(n)"], []
    for base in "pqw":
        if not any(form.startswith(base) for form in forms):
            continue
        size = "n + 1, n + 1" if base == "w" else "n, n"
        # The second of two matrices may need no gradient where the first does.
        alone = base == "q" and draw(st.integers(0, 3)) == 0
        needs = kind != "plain" and not alone
        lines.append(f"{base} = torch.randn({size}, dtype=DTYPE, requires_grad={needs})")
        watched.append(base)
        if kind == "inner":
            lines += [f"{base}_ = {base}", f"{base} = {base}_ * 1"]
            watched[-1] = f"{base}_"
            watched.append(base)
    args = ", ".join(forms)
    return (*lines, f"return Scene(({args}, k), ({', '.join(watched)},))"), kind

"""Calls with collectives for tests, on 4 x 4 tensors; nothing runs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tj_core.extend import (
    Alias,
    BoundSymbol,
    Effects,
    Proxy,
    Symbol,
    TensorProxy,
    Trace,
    contiguous_strides,
)
from tj_core.text.language import EMPTY_LANGUAGE
from tj_distributed.sequence import PREFIX, TORCH_WAIT
from tj_distributed.testing import drawn

OPERATIONS = {
    "G": "all_gather_into_tensor", "R": "reduce_scatter_tensor", "A": "all_reduce"
}  # fmt: skip


def tensor(name: str, *shape: int) -> TensorProxy:
    sizes = shape or (4, 4)
    strides = contiguous_strides(sizes)
    assert strides is not None
    return TensorProxy(name, sizes, strides)


class Program:
    """Calls in the order in which methods are called; each returns the value that it makes."""

    def __init__(self) -> None:
        self.calls: list[BoundSymbol] = []
        self.inputs: list[TensorProxy] = []

    def given(self, *shape: int) -> TensorProxy:
        self.inputs.append(tensor(f"x{len(self.inputs)}", *shape))
        return self.inputs[-1]

    def _add(self, name: str, args: Sequence[Any], effects: Effects, *shape: int) -> TensorProxy:
        made = tensor(f"v{len(self.calls)}", *shape)
        self.calls.append(BoundSymbol(Symbol.parse(name), tuple(args), (), made, effects))
        return made

    def start(self, letter: str, x: Proxy, group: str = "0", *shape: int) -> TensorProxy:
        name = f"{PREFIX}{OPERATIONS[letter]}.default"
        details = {"G": (2, group), "R": ("sum", 2, group), "A": ("sum", group)}[letter]
        effects = Effects(ordered=(f"collective:{group}",))
        return self._add(name, (x, *details), effects, *shape)

    def wait(self, x: TensorProxy) -> TensorProxy:
        sizes = (size for size in x.shape if isinstance(size, int))
        return self._add(TORCH_WAIT, (x,), Effects(ordered=("wait",)), *sizes)

    def gathered(self, x: Proxy, *shape: int) -> TensorProxy:
        return self.wait(self.start("G", x, "0", *shape))

    def product(self, x: Proxy, y: Proxy) -> TensorProxy:
        return self._add("aten.mm.default", (x, y), Effects())

    def light(self, *xs: Proxy) -> TensorProxy:
        """A sum of two values, or a cast of one."""
        name = "aten.add.Tensor" if len(xs) == 2 else "aten.clone.default"
        return self._add(name, xs, Effects())

    def view(self, x: Proxy) -> TensorProxy:
        return self._add("aten.t.default", (x,), Effects(aliases=(Alias(0, "arg"),)))

    def write(self, x: Proxy) -> None:
        self.calls.append(
            BoundSymbol(Symbol.parse("aten.zero_.default"), (x,), effects=Effects(mutates=(0,)))
        )


def picture(calls: Sequence[BoundSymbol]) -> str:
    return drawn(Trace((), tuple(calls), (), language=EMPTY_LANGUAGE))


def made_up(seed: int) -> Program:
    """Calls of all kinds on earlier values."""
    chance = random.Random(seed)
    p = Program()
    values = [p.given() for _ in range(4)]
    started: list[object] = []
    for _ in range(chance.randrange(5, 60)):
        kind = chance.choice("GGRAwwwmmmllllvv!" if chance.random() < 0.3 else "GRAwwmmllv")
        x, y = chance.choice(values), chance.choice(values)
        if kind in "GRA":
            started.append(p.start(kind, x, chance.choice("001")))
        elif kind == "w" and started:
            values.append(p.wait(started.pop(chance.randrange(len(started)))))  # type: ignore[arg-type]
        elif kind == "m":
            values.append(p.product(x, y))
        elif kind == "l":
            values.append(p.light(x, y) if chance.random() < 0.5 else p.light(x))
        elif kind == "v":
            values.append(p.view(x))
        elif kind == "!":
            p.write(x)
    return p


def places_in(order: Sequence[BoundSymbol], program: Program) -> list[int]:
    """The place in ``order`` of each call of ``program``; all are there, after what they read."""
    assert sorted(map(id, order)) == sorted(map(id, program.calls))
    known = {p.name for p in program.inputs}
    for call in order:
        assert {p.name for p in call.flat_args} <= known, picture(program.calls)
        known |= {p.name for p in call.flat_outs}
    place = {id(call): i for i, call in enumerate(order)}
    return [place[id(call)] for call in program.calls]

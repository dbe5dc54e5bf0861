"""Facts of a program's products: operands behind transpositions, places, readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tj_core.extend import (
    BoundSymbol,
    Constant,
    Proxy,
    TensorProxy,
    Trace,
    alias_facts,
    contiguous_strides,
    formal_index,
    leaves,
    map_tree,
    requires_grad,
    value_names,
)

__all__ = [
    "ADD",
    "CAT",
    "DTYPES",
    "FEWEST",
    "MM",
    "MOST_ROWS",
    "PRODUCTS",
    "ROWS",
    "TRANSPOSE",
    "Facts",
    "Operand",
    "Row",
    "is_factor",
    "is_plain",
    "operation",
    "outside",
]

MM, ADDMM = "aten.mm.default", "aten.addmm.default"
PRODUCTS = frozenset({MM, ADDMM})
TRANSPOSE = "aten.t.default"
ADD = "aten.add.Tensor"
CAT = "aten.cat.default"
SELECT, UNBIND = "aten.select.int", "aten.unbind.int"

FEWEST = 4
"""Number of products from which on they are made at once."""

ROWS = 64
"""Largest number of rows of a product that is faster as a part of a larger one: with more, the
kernels of PyTorch and oneDNN are near to their highest speed.
"""

MOST_ROWS = 1024
"""Number of rows of a joined product at most; it bounds the memory that waits for the last part."""

DTYPES = frozenset({"float32", "float64", "bfloat16", "float16"})


class Row(NamedTuple):
    """A place along the first dimension of ``base``."""

    base: TensorProxy
    place: int


class Operand(NamedTuple):
    """A value behind its transpositions: its `Facts.numbers`, and if it is transposed."""

    root: int | str
    transposed: bool


@dataclass
class Facts:
    """Facts of ``trace``, by name of value.

    ``makers`` are the calls, ``places`` the indices of these (inputs have none), ``reads`` the
    numbers of readers, ``first_reads`` the index of the first; results are read at the end.
    ``moved`` are the places of values whose calls are moved. ``numbers`` are equal for values that
    equal calls make of equal arguments.
    """

    trace: Trace
    makers: dict[str, BoundSymbol] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    first_reads: dict[str, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known: dict[Any, int] = {}
        for place, call in enumerate(self.trace.calls):
            self.read((p.name for p in call.flat_args), place)
            kind = self.kind(call, place)
            for i, p in enumerate(call.flat_outs):
                self.makers.setdefault(p.name, call)
                self.places.setdefault(p.name, place)
                self.numbers[p.name] = known.setdefault((kind, i), len(known))
        self.read(value_names(self.trace.outputs), len(self.trace.calls))
        found = alias_facts(self.trace)
        self.roots: Mapping[str, str] = found.roots
        self.escaping, self.mutated = found.escaping, found.mutated

    def kind(self, call: BoundSymbol, place: int) -> Any:
        """A value that is equal for calls that make the same; ``place`` where others make it new.

        Calls with effects or bodies of their own kind are equal to none. `cse` merges fewer: it
        keeps both of two equal values that the program returns, as it does what it saves.
        """
        pure = call.effects.removable and not call.subprograms and not call.symbol.edited
        given = tuple(self.number(p.name) for p in call.flat_args)
        plain = map_tree(lambda p: None, (call.args, call.kwargs), Proxy)
        plain = map_tree(_constant, plain, Constant)
        return (call.symbol, call.context, repr(plain), given) if pure else place

    def number(self, name: str) -> int | str:
        """The number of value ``name``; the name of an input."""
        return self.numbers.get(name, name)

    def read(self, names: Iterable[str], place: int) -> None:
        """Note that the call at ``place`` reads the values ``names``."""
        for name in names:
            self.reads[name] += 1
            self.first_reads.setdefault(name, place)

    def place(self, p: Proxy) -> int:
        """Index of the call that makes ``p``; -1 for an input."""
        return self.moved.get(p.name, self.places.get(p.name, -1))

    def first_read(self, p: Proxy) -> int:
        """Index of the first reader of ``p``; the number of calls if there is none."""
        return self.first_reads.get(p.name, len(self.trace.calls))

    def move(self, place: int, before: int) -> None:
        """Note that the call at ``place`` runs before the call at index ``before``."""
        call = self.trace.calls[place]
        self.moved.update((p.name, before - 1) for p in call.flat_outs)
        for p in call.flat_args:
            self.first_reads[p.name] = min(self.first_read(p), before)

    def escapes(self, p: Proxy) -> bool:
        """Check if the caller gets the memory of ``p``."""
        return self.roots[p.name] in self.escaping

    def operand(self, p: Proxy) -> Operand:
        """``p`` behind its transpositions."""
        transposed = False
        while (call := self.makers.get(p.name)) and call.symbol.qualname == TRANSPOSE:
            p, transposed = call.flat_args[0], not transposed
        return Operand(self.number(p.name), transposed)

    def row(self, p: Proxy) -> Row | None:
        """The place that ``p`` is of another value, as ``x[i]`` or one of ``x.unbind()``; or None.

        A negative index, and a base that is not dense, are not looked into.
        """
        call = self.makers.get(p.name)
        if call is None or (inner := operation(call)).symbol.qualname not in (SELECT, UNBIND):
            return None
        name, numbers, base = inner.symbol.qualname, [*inner.args[1:]], call.flat_args[0]
        if not isinstance(base, TensorProxy) or base.strides != contiguous_strides(base.shape):
            return None
        if name == SELECT and len(numbers) == 2 and numbers[0] == 0:
            return Row(base, numbers[1]) if isinstance(numbers[1], int) else None
        if name == UNBIND and numbers in ([], [0]):
            return Row(base, [out.name for out in call.flat_outs].index(p.name))
        return None

    def rows(self, values: Sequence[Proxy]) -> dict[str, Row] | None:
        """The places of ``values``, by name, if they are all places of one value; or None."""
        found = {p.name: row for p in values if (row := self.row(p)) is not None}
        bases = {row.base.name: row.base for row in found.values()}
        if len(found) < len(values) or len(bases) != 1:
            return None
        (base,) = bases.values()
        places = {row.place for row in found.values()}
        return found if base.shape[0] == len(values) and places == {*range(len(values))} else None


def _constant(constant: Constant) -> tuple[str, int | None]:
    """A value that is equal for equal constants; the text of a tensor is a part of it only."""
    return constant.text, None if constant.named else id(constant.value)


def operation(call: BoundSymbol) -> BoundSymbol:
    """The only call in the body of ``call``, whose arguments have other names; else ``call``.

    A body that returns anything but what its call makes is not looked into.
    """
    body = call.body
    if call.symbol.namespace == "aten" or body is None or len(body.calls) != 1:
        return call
    (inner,) = body.calls
    returned = [p.name if isinstance(p, Proxy) else None for p in leaves(body.outputs)]
    made = [p.name for p in inner.flat_outs]
    return inner if returned == made and len(made) == len(call.flat_outs) else call


def outside(call: BoundSymbol, p: Any) -> Any:
    """The value in the program for ``p``, an argument of `operation` of ``call``."""
    return p if operation(call) is call else call.flat_args[formal_index(p.name)]


def is_plain(p: Proxy) -> bool:
    """Check for a matrix of floating-point numbers with known sizes."""
    return (
        isinstance(p, TensorProxy)
        and p.ndim == 2
        and p.dtype.name in DTYPES
        and not (p.flags or p.subclass)
        and all(isinstance(n, int) and n > 0 for n in p.shape)
    )


def is_factor(call: BoundSymbol) -> bool:
    """Check for a product of plain matrices without a gradient, with a row added or without."""
    name = call.symbol.qualname
    if name not in PRODUCTS or call.kwargs or len(call.args) != len(call.flat_args):
        return False
    *added, left, right = call.flat_args
    if name == ADDMM and not (isinstance(added[0], TensorProxy) and added[0].ndim == 1):
        return False
    return all(is_plain(p) for p in (left, right, *call.flat_outs)) and _alike(call)


def _alike(call: BoundSymbol) -> bool:
    values = [p for p in (*call.flat_args, *call.flat_outs) if isinstance(p, TensorProxy)]
    kinds = {(p.dtype, p.device) for p in values}
    return len(kinds) == 1 and not any(map(requires_grad, call.flat_outs))

"""Checks of a kernel's run against the trace: results, writes, shared memory.

Later calls rely on the metadata that the trace declares for a kernel's results, and on memory that
the kernel neither writes nor shares. Only dialects can inspect values: see `RuntimeValues`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tj_core.ir.effects import NO_EFFECTS, Effects
from tj_core.ir.proxy import (
    Dim,
    NumberProxy,
    OpaqueProxy,
    Proxy,
    SymDim,
    TensorProxy,
    requires_grad,
)
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.sizes import evaluate_size, size_symbols
from tj_core.ir.tree import map_tree

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol

__all__ = ["Given", "Run", "differences", "given_values", "in_memory", "unequal"]

Given = Sequence[tuple[Proxy, Any]]
"""Values of a program, each with its value at run time."""

Runtime = Sequence[RuntimeValues]


class _Misshapen(Exception):
    """The structure of a result differs from the trace."""


class Run:
    """One run of a kernel, as a record, made before the run, of the state of its arguments.

    ``given`` are its arguments, in the order in which ``effects`` count them. ``earlier`` are
    the memories of earlier results that are still in use. ``together`` are pairs of results that
    may share memory.
    """

    def __init__(
        self,
        given: Given,
        runtime: Runtime,
        effects: Effects = NO_EFFECTS,
        earlier: Collection[Hashable] = (),
    ) -> None:
        self.given = given
        self.runtime = runtime
        self.effects = effects
        self.earlier = earlier
        self.memory = [_memory(value, runtime) for _, value in given]
        self.together = [{a.output, a.index} for a in effects.aliases if a.kind == "out"]
        written = {self.memory[i] for i in effects.written}
        self.marks = [
            (p, value, dialect, dialect.mark(value))
            for (p, value), memory in zip(given, self.memory, strict=True)
            if memory not in written and (dialect := _dialect(value, runtime)) is not None
        ]

    def problems(self, outputs: Any, result: Any) -> Iterator[str]:
        """Differences of ``result`` from ``outputs``, and wrong writes to other values."""
        yield from self.wrong(outputs, result)
        yield from self.lost(outputs, result)

    def lost(self, outputs: Any, result: Any) -> Iterator[str]:
        """Values of the program that the run has overwritten against the trace."""
        yield from self.overwrites(outputs, result)
        yield from self.writes()

    def wrong(self, outputs: Any, result: Any) -> Iterator[str]:
        """Differences of ``result`` from ``outputs``: metadata, else memory and gradients."""
        found = list(differences(outputs, result, self.runtime))
        yield from found or self.undeclared(outputs, result)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The value of each symbol that is, by itself, a size or number of an argument."""
        found: dict[str, int] = {}
        for p, value in self.given:
            if isinstance(p, NumberProxy) and p.expr.isidentifier():
                found[p.expr] = value
            elif isinstance(p, TensorProxy):
                found |= _bound(p.shape, _shape(value, self.runtime))
        return found

    def sized(self, outputs: Any) -> Any:
        """``outputs`` with numbers for the symbols that the arguments determine."""
        return map_tree(self._sized, outputs) if self.sizes else outputs

    def _sized(self, p: Any) -> Any:
        return p.map_symbols(self._size) if isinstance(p, TensorProxy) else p

    def _size(self, size: SymDim) -> Dim:
        if not self.sizes.keys() >= set(size_symbols(size.name)):
            return size
        return int(evaluate_size(size.name, self.sizes.__getitem__))

    def writes(self) -> Iterator[str]:
        """Arguments that the run has written against the trace."""
        for p, value, dialect, mark in self.marks:
            if dialect.mark(value) != mark:
                yield f"it wrote to argument {p.name!r}, which the trace does not say"

    def undeclared(self, outputs: Any, result: Any) -> Iterator[str]:
        """Results that share memory, or require a gradient, without a declaration in the trace."""
        pairs = [(p, value) for p, value in _pairs(outputs, result) if isinstance(p, Proxy)]
        memory = [_memory(value, self.runtime) for _, value in pairs]
        given = {at: p.name for (p, _), at in zip(self.given, self.memory, strict=True)}
        known: dict[Hashable | None, int] = {}
        for i, (at, (p, value)) in enumerate(zip(memory, pairs, strict=True)):
            lent, shared = self.lent(i), self.shared(i, memory)
            place = None
            if at in given and at not in lent:
                place = f"its argument {given[at]!r}"
            elif at in known and at not in lent | shared:
                place = f"result {known[at]}"
            if at is not None and place is not None:
                yield f"result {i} is in the memory of {place}, which the trace does not say"
            if not (requires_grad(p) or at in lent | shared) and _is_tracked(value, self.runtime):
                yield f"result {i} requires a gradient"
            known.setdefault(at, i)

    def overwrites(self, outputs: Any, result: Any) -> Iterator[str]:
        """Results in the memory of earlier results that are still in use, and are lost by it."""
        for i, (_, at) in enumerate(_places(outputs, result, self.runtime)):
            if at in self.earlier and at not in self.lent(i):
                yield (
                    f"result {i} is in the memory of an earlier result that is still in use, which "
                    "the trace does not say"
                )

    def reused(self, outputs: Any, first: Any, second: Any) -> Iterator[str]:
        """Results of a second run in the memory of results of the first."""
        taken = {at for _, at in _places(outputs, first, self.runtime) if at is not None}
        for i, (_, at) in enumerate(_places(outputs, second, self.runtime)):
            if at in taken and at not in self.lent(i):
                yield f"result {i} is in the same memory in every run"

    def lent(self, output: int) -> set[Hashable | None]:
        """The memories of arguments that result ``output`` may be in, by the declared aliases."""
        # Results that share memory with each other share it with the same arguments.
        linked, more = {output}, {output}
        while more:
            more = set().union(*(pair for pair in self.together if pair & linked)) - linked
            linked |= more
        lent = (a for a in self.effects.aliases if a.kind == "arg" and a.output in linked)
        return {self.memory[a.index] for a in lent}

    def shared(self, output: int, results: Sequence[Hashable | None]) -> set[Hashable | None]:
        """The memories of other results that result ``output`` may be in."""
        return {results[i] for pair in self.together if output in pair for i in pair}


def given_values(call: BoundSymbol, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given:
    """The proxies among the arguments of ``call``, in order, each with its value at run time."""
    pairs = _pairs((call.args, dict(call.kwargs)), (args, kwargs))
    return [(p, value) for p, value in pairs if isinstance(p, Proxy)]


def in_memory(outputs: Any, result: Any, runtime: Runtime) -> Iterator[tuple[Hashable, Any]]:
    """The values in ``result`` for the proxies in ``outputs``, each after its memory."""
    for value, memory in _places(outputs, result, runtime):
        if memory is not None:
            yield memory, value


def differences(outputs: Any, result: Any, runtime: Runtime) -> Iterator[str]:
    """Differences of ``result`` from ``outputs``, a tree of proxies: structure, then metadata.

    Without dialects that can inspect values, only the structure is compared.
    """
    try:
        pairs = list(_pairs(outputs, result))
    except _Misshapen as misshapen:
        yield str(misshapen)
        return
    for index, (p, value) in enumerate(pairs):
        for problem in _differs(p, value, runtime):
            yield f"result {index} {problem}"


def unequal(
    expected: Any, result: Any, outputs: Any, runtime: Runtime, steps: int = 1
) -> Iterator[str]:
    """Values of ``result`` that differ from ``expected``; both have the metadata of ``outputs``.

    ``steps`` is the number of operations, one after the other, that may each have rounded.
    """
    both = zip(_pairs(outputs, result), _pairs(outputs, expected), strict=True)
    for index, ((p, found), (_, wanted)) in enumerate(both):
        dialect = _dialect(wanted, runtime)
        if isinstance(p, TensorProxy) and dialect is not None:
            if (problem := dialect.differs(found, wanted, steps)) is not None:
                yield f"result {index} {problem}"
        elif isinstance(p, NumberProxy) and found != wanted:
            yield f"result {index} is {found}, not {wanted}"


# ------------------------------------------------------------------------------- trees


def _pairs(said: Any, got: Any) -> Iterator[tuple[Any, Any]]:
    """The leaves of ``said``, each with the item of ``got`` at the same place.

    Named tuples count as tuples; the item at the place of one constant may be a tuple, too.
    """
    if isinstance(said, tuple | list):
        if not isinstance(got, tuple | list) or len(got) != len(said):
            raise _Misshapen(f"it returned {_count(got)}, not {len(said)} values")
        for a, b in zip(said, got, strict=True):
            yield from _pairs(a, b)
    elif isinstance(said, dict):
        if not isinstance(got, Mapping) or got.keys() != said.keys():
            raise _Misshapen(f"it returned {_count(got)}, not a dict of {', '.join(said)}")
        for key, value in said.items():
            yield from _pairs(value, got[key])
    elif isinstance(said, slice):
        parts = (said.start, said.stop, said.step)
        yield from _pairs(parts, (got.start, got.stop, got.step))
    else:
        yield said, got


def _places(outputs: Any, result: Any, runtime: Runtime) -> Iterator[tuple[Any, Hashable | None]]:
    """The values in ``result`` for proxies, each with its memory; none if the structures differ."""
    with contextlib.suppress(_Misshapen):
        for p, value in list(_pairs(outputs, result)):
            if isinstance(p, Proxy):
                yield value, _memory(value, runtime)


def _count(result: Any) -> str:
    if isinstance(result, tuple | list):
        return f"{len(result)} values"
    return f"one value, a {type(result).__name__}"


# ------------------------------------------------------------------------------- values


def _dialect(value: Any, runtime: Runtime) -> RuntimeValues | None:
    """The dialect that can inspect ``value``, or None."""
    return next((d for d in runtime if d.observe(value) is not None), None)


def _memory(value: Any, runtime: Runtime) -> Hashable | None:
    dialect = _dialect(value, runtime)
    return None if dialect is None else dialect.memory(value)


def _shape(value: Any, runtime: Runtime) -> tuple[Dim, ...]:
    dialect = _dialect(value, runtime)
    found = dialect.observe(value) if dialect is not None else None
    return found.shape if isinstance(found, TensorProxy) else ()


def _bound(said: tuple[Dim, ...], found: tuple[Dim, ...]) -> dict[str, int]:
    """The values in ``found`` of the symbols that are, by themselves, a size in ``said``."""
    pairs = zip(said, found, strict=False)
    return {
        n.name: size
        for n, size in pairs
        if isinstance(n, SymDim) and n.name.isidentifier() and isinstance(size, int)
    }


def _is_tracked(value: Any, runtime: Runtime) -> bool:
    dialect = _dialect(value, runtime)
    return dialect is not None and requires_grad(dialect.observe(value))


def _differs(p: Any, value: Any, runtime: Runtime) -> Iterator[str]:
    if isinstance(p, TensorProxy) and p.subclass is None and runtime:
        dialect = _dialect(value, runtime)
        yield from _tensor(p, dialect.observe(value) if dialect else None, value)
    elif isinstance(p, NumberProxy) and not isinstance(value, _NUMBERS.get(p.kind, object)):
        yield f"is a {type(value).__name__}, not a number of type {p.kind}"
    elif isinstance(p, OpaqueProxy) and value is None and p.type != "NoneType":
        yield f"is None, not a {p.type}"


_NUMBERS = {"bool": bool, "int": int, "float": float, "complex": complex}


def _tensor(p: TensorProxy, found: Proxy | None, value: Any) -> Iterator[str]:
    if not isinstance(found, TensorProxy) or found.subclass is not None:
        yield f"is a {type(value).__name__}, not a plain tensor"
        return
    for what in ("dtype", "device", "layout", "flags"):
        if getattr(p, what) != getattr(found, what):
            yield f"has {what} {getattr(found, what)}, not {getattr(p, what)}"
    if not _same(p.shape, found.shape):
        yield f"has shape {_shown(found.shape)}, not {_shown(p.shape)}"
    elif not _same(_strides(p, found), _strides(found, found)):
        yield f"has strides {_shown(found.strides)}, not {_shown(p.strides)}"


def _same(said: tuple[Dim, ...], found: tuple[Dim, ...]) -> bool:
    """Compare sizes; a symbol in the trace agrees with any number."""
    pairs = zip_longest(said, found)
    return all(a == b or not isinstance(a, int | None) for a, b in pairs)


def _strides(p: TensorProxy, found: TensorProxy) -> tuple[Dim, ...]:
    """The strides that addresses depend on: not in empty tensors or dimensions of size one."""
    if 0 in found.shape:
        return ()
    return tuple(s for s, size in zip(p.strides, found.shape, strict=False) if size != 1)


def _shown(dims: tuple[Dim, ...]) -> str:
    return f"({', '.join(map(str, dims))})"

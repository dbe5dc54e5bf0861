"""The collectives of a program, in order: what ranks have to agree on."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tj_core.extend import FUNCTIONAL, BoundSymbol, Proxy, TensorProxy, Trace

from tj_distributed.names import NAMES

__all__ = [
    "PREFIX",
    "TORCH_WAIT",
    "Collective",
    "collectives",
    "described",
    "digest",
    "first_difference",
    "from_text",
    "starts",
    "to_text",
]

TORCH_WAIT = NAMES["WAIT"].path
PREFIX = TORCH_WAIT.removesuffix("wait_tensor.default")


class Collective(NamedTuple):
    """One collective operation of a program.

    ``elements`` is the number in its inputs; None where a size is a symbol, and where ranks may
    give different numbers, as ``all_to_all`` allows. ``line`` is the user's. ``inputs`` are the
    names of the program's inputs that its operands depend on, none where there are many.
    """

    operation: str
    group: str
    dtype: str
    elements: int | None
    details: tuple[str, ...]
    line: str
    inputs: tuple[str, ...] = ()

    def agrees(self, other: Collective) -> bool:
        """Test if one rank may run this while another runs ``other``.

        Not if they are of different kinds, and not if they stand in different lines and have no
        input in common. One of a line may have other operands, as zeros where a rank has no data.
        """
        if None not in (self.elements, other.elements) and self.elements != other.elements:
            return False
        if self._facts() != other._facts():
            return False
        return self.line == other.line or not self._of_others(other)

    def _of_others(self, other: Collective) -> bool:
        """Test if the operands of both depend on inputs, and on none in common."""
        return bool(self.inputs and other.inputs) and not {*self.inputs} & {*other.inputs}

    def _operands(self) -> tuple[Any, ...]:
        """Facts but for the place in a call that starts several."""
        details = tuple(detail for detail in self.details if not detail.endswith(_AT_ONCE))
        return self.operation, self.dtype, details, self.inputs

    def exchanged(
        self, other: Collective, ours: Iterable[Collective], theirs: Iterable[Collective]
    ) -> bool:
        """Test if a sequence ``theirs`` has this one elsewhere, and ``ours`` has ``other``."""
        return (
            self._of_others(other)
            and any(c._operands() == self._operands() for c in theirs)
            and any(c._operands() == other._operands() for c in ours)
        )

    def _facts(self) -> tuple[Any, ...]:
        return self.operation, self.dtype, self.details

    def __str__(self) -> str:
        elements = "?" if self.elements is None else self.elements
        of = f" of {', '.join(self.inputs)}" if self.inputs else ""
        details = ", ".join((f"{elements} x {self.dtype}{of}", *self.details))
        return f"{self.operation}({details})" + (f"  at {self.line}" if self.line else "")


_FEW = 8
"""Most inputs that are told of a collective."""


def collectives(trace: Trace) -> tuple[Collective, ...]:
    """The collectives that ``trace`` starts, in order."""
    # Sets of inputs are bits of an integer: a program may have thousands, and each call some.
    names = [p.name for p in trace.inputs]
    depends = {name: 1 << i for i, name in enumerate(names)}
    found = []
    for call in trace.calls:
        bits = 0
        for p in call.flat_args:
            bits |= depends.get(p.name, 0)
        depends.update((p.name, bits) for p in call.flat_outs)
        if starts(call):
            for one, operands in _parts(call):
                mine = 0
                for p in operands:
                    mine |= depends.get(p.name, 0)
                few = mine.bit_count() <= _FEW
                inputs = [name for i, name in enumerate(names) if few and mine >> i & 1]
                found.append(one._replace(inputs=tuple(inputs)))
    return tuple(found)


_AT_ONCE = " at once"


def _parts(call: BoundSymbol) -> list[tuple[Collective, Sequence[Proxy]]]:
    """The collectives that ``call`` starts at once, each with its operands.

    Ranks that put the same tensors into one call in different orders do not agree.
    """
    whole = described(call)
    if not isinstance(call.args[0], (list, tuple)):
        return [(whole, call.flat_args)]
    operation = whole.operation.replace("_coalesced", "")
    found: list[tuple[Collective, Sequence[Proxy]]] = []
    for i, p in enumerate(call.args[0], start=1):
        elements = _elements([p]) if whole.elements is not None else None
        details = (*whole.details, f"{i} of {len(call.args[0])}{_AT_ONCE}")
        one = whole._replace(
            operation=operation, dtype=str(p.dtype), elements=elements, details=details
        )
        found.append((one, (p,)))
    return found


def starts(call: BoundSymbol) -> bool:
    """Test if ``call`` starts a collective."""
    name = call.symbol.qualname
    # The gradient of a collective, "...default.backward", consists of calls.
    itself = call.symbol.variant in ("", FUNCTIONAL)
    return itself and name.startswith(PREFIX) and name != TORCH_WAIT


def described(call: BoundSymbol) -> Collective:
    """The collective that ``call`` starts."""
    tensors = [p for p in call.flat_args if isinstance(p, TensorProxy)]
    *details, group = [str(a) for a in (*call.args, *dict(call.kwargs).values()) if _is_detail(a)]
    elements = None if "all_to_all" in call.symbol.qualname else _elements(tensors)
    dtypes = ", ".join(dict.fromkeys(str(p.dtype) for p in tensors))
    name = call.symbol.qualname.removeprefix(PREFIX).rpartition(".")[0]
    line = "" if call.source is None else str(call.source)
    return Collective(name, group, dtypes, elements, tuple(details), line)


def _elements(tensors: Iterable[TensorProxy]) -> int | None:
    """Number of elements in ``tensors``; None if a size is a symbol."""
    shapes = [p.shape for p in tensors]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return None
    return sum(map(_product, shapes))


def _is_detail(argument: Any) -> bool:
    """Test for a group's name, an operation of a reduction, or a number as the root's."""
    return isinstance(argument, (str, int))


def _product(shape: Iterable[Any]) -> int:
    found = 1
    for size in shape:
        found *= int(size)
    return found


@functools.lru_cache(maxsize=1024)
def digest(found: tuple[Collective, ...]) -> str:
    """Hash of a sequence; ranks with equal ones agree."""
    facts = [(*c._replace(group=""),) for c in found]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def first_difference(ours: tuple[Collective, ...], theirs: tuple[Collective, ...]) -> int | None:
    """Place of the first collective in which two sequences differ; None if they agree."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if not a.agrees(b) or a.exchanged(b, ours, theirs):
            return i
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def to_text(found: tuple[Collective, ...]) -> str:
    """JSON of a sequence."""
    return json.dumps(found)


# `begin` reads the text of its program in each call.
@functools.lru_cache(maxsize=1024)
def from_text(text: str) -> tuple[Collective, ...]:
    """Sequence in ``text``, which `to_text` has made."""
    return tuple(
        Collective(a, b, c, d, tuple(e), f, tuple(g)) for a, b, c, d, e, f, g in json.loads(text)
    )

"""Symbols in the sizes of a region to be: where their values stand in what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tj_core.contract.decline import Decline
from tj_core.ir.proxy import NumberProxy, Proxy, SymDim, TensorProxy, size_expressions
from tj_core.ir.sizes import size_symbols
from tj_core.ir.trace import BoundSymbol

__all__ = ["SizePlace", "size_places", "sizes_are_bound", "symbols_in"]


@dataclass(frozen=True, slots=True)
class SizePlace:
    """An input that is a number (``dim`` is None), or one dimension of an input's shape."""

    index: int
    dim: int | None = None

    @property
    def text(self) -> str:
        """How code reads it of a list of inputs called ``box``."""
        return f"box[{self.index}]" + ("" if self.dim is None else f".size({self.dim})")


def symbols_in(values: Iterable[Proxy]) -> tuple[str, ...]:
    """The symbols in the metadata of ``values``, each once, in order of appearance."""
    texts = (text for p in values for text, _ in size_expressions(p))
    return tuple(dict.fromkeys(name for text in texts for name in size_symbols(text)))


def size_places(inputs: Sequence[Proxy]) -> dict[str, SizePlace]:
    """Where the values of symbols are found: as a whole size, or as a number."""
    found: dict[str, SizePlace] = {}
    for index, p in enumerate(inputs):
        if isinstance(p, NumberProxy):
            found.setdefault(p.expr or "", SizePlace(index))
        elif isinstance(p, TensorProxy):
            for dim, size in enumerate(p.shape):
                if isinstance(size, SymDim):
                    found.setdefault(size.name, SizePlace(index, dim))
    return {text: place for text, place in found.items() if size_symbols(text) == (text,)}


def sizes_are_bound(calls: Sequence[BoundSymbol]) -> bool | Decline:
    """Whether the values of all symbols in ``calls`` can be read off what these take."""
    made = {p.name for call in calls for p in call.flat_outs}
    inputs = [p for call in calls for p in call.flat_args if p.name not in made]
    every = symbols_in(p for call in calls for p in (*call.flat_args, *call.flat_outs))
    missing = set(every) - size_places(inputs).keys()
    if missing:
        return Decline(f"no input of the region has the size {min(missing)}")
    return True

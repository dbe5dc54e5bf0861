"""Symbols in the sizes of a planned region, and the inputs that their values are read from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tj_core.contract.decline import Decline
from tj_core.ir.proxy import NumberProxy, Proxy, SymDim, TensorProxy, size_expressions
from tj_core.ir.sizes import size_symbols, symbol_and_number

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol

__all__ = ["SizePlace", "size_places", "sizes_are_bound", "symbols_in"]


@dataclass(frozen=True, slots=True)
class SizePlace:
    """An input that is a number (``dim`` is None), or one dimension of an input's shape.

    The value is ``more`` than that.
    """

    index: int
    dim: int | None = None
    more: int = 0

    @property
    def text(self) -> str:
        """The value as an expression over the list of inputs, ``box``."""
        read = f"box[{self.index}]" + ("" if self.dim is None else f".size({self.dim})")
        return f"{read} + {self.more}" if self.more else read


def symbols_in(values: Iterable[Proxy]) -> tuple[str, ...]:
    """The symbols in the metadata of ``values``, each once, in order of appearance."""
    texts = (text for p in values for text, _ in size_expressions(p))
    return tuple(dict.fromkeys(name for text in texts for name in size_symbols(text)))


def size_places(inputs: Sequence[Proxy], *, sums: bool = False) -> dict[str, SizePlace]:
    """The place of each symbol that is a whole size, or a number, among ``inputs``.

    With ``sums``, of a symbol that is none, but a size less or more a number, too: ``n`` for
    ``n + 1``, the length of a cache that a token was put behind. Only then places have ``more``.
    """
    found: dict[str, SizePlace] = {}
    for index, p in enumerate(inputs):
        if isinstance(p, NumberProxy):
            found.setdefault(p.expr or "", SizePlace(index))
        elif isinstance(p, TensorProxy):
            for dim, size in enumerate(p.shape):
                if isinstance(size, SymDim):
                    found.setdefault(size.name, SizePlace(index, dim))
    whole = {text: place for text, place in found.items() if size_symbols(text) == (text,)}
    if not sums:
        return whole
    others = [(symbol_and_number(text), place) for text, place in found.items()]
    solved = {s[0]: replace(place, more=-s[1]) for s, place in others if s is not None}
    return {**solved, **whole}


def sizes_are_bound(calls: Sequence[BoundSymbol], *, sums: bool = False) -> bool | Decline:
    """True if the inputs of ``calls`` determine all symbols in their sizes, else a `Decline`.

    ``sums`` as in `size_places`, which an executor that passes it has to read sizes by.
    """
    made = {p.name for call in calls for p in call.flat_outs}
    inputs = [p for call in calls for p in call.flat_args if p.name not in made]
    every = symbols_in(p for call in calls for p in (*call.flat_args, *call.flat_outs))
    missing = set(every) - size_places(inputs, sums=sums).keys()
    if missing:
        return Decline(f"no input of the region has the size {min(missing)}")
    return True

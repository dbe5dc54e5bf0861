"""A region whose sizes are symbols: a compiled function for all sizes that it serves.

Inductor decides on sizes as it compiles, by their values in the traced call; it says on what. For
sizes for which that is not true the region is compiled again, and where that has happened often,
its operations run one by one. The first run of each function is held against the trace.

Inductor takes every size for at least 2 and says nothing of that, so operations run one by one
where a size is 0 or 1. A symbol that is no size, a number that the program computes with, may have
any value and any sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.extend import (
    Boxed,
    FusionRegion,
    Proxy,
    TensorProxy,
    evaluate_size,
    interpreter,
    size_hints,
    size_places,
    symbols_in,
)

__all__ = ["MOST", "Variant", "Variants", "sizes_in"]

MOST = 4
"""The number of times that a region is compiled for other sizes."""

REMEMBERED = 1024
"""The number of sizes whose function is remembered."""


@dataclass(eq=False, slots=True)
class Variant:
    """A compiled function, the conditions on symbols that it was compiled under, and its text.

    The function takes a list of the values of the symbols, then of the inputs. ``kept`` is what
    another process can make it of. ``ran``: it has run once, which is held against the trace.
    """

    function: Boxed
    conditions: tuple[str, ...] = ()
    source: str = ""
    kept: str = ""
    ran: bool = False

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Whether it may run for ``sizes``."""
        return all(evaluate_size(text, sizes.__getitem__) for text in self.conditions)


class Variants:
    """Runs ``region``, which ``compile`` compiles for given values of symbols.

    ``first`` is what serves those that the symbols had when traced, if it is there already. Where
    a size was 0 or 1 then, nothing is compiled before other sizes come.
    """

    def __init__(
        self,
        region: FusionRegion,
        compile: Callable[[Mapping[str, int]], Variant],
        first: Variant | None = None,
    ) -> None:
        self.first_run = region.first_run
        self.names = symbols_in(region.inputs)
        places = size_places(region.inputs)
        text = ", ".join(places[name].text for name in self.names)
        self.read: Callable[[list[Any]], tuple[int, ...]] = eval(f"lambda box: ({text},)")
        self.compile = compile
        hints = size_hints(region.inputs)
        self.sizes = sizes_in(region.inputs)
        traced = {name: hints[name] for name in self.names}
        if first is None and self.can_serve(traced):
            first = compile(traced)
        self.made = [] if first is None else [first]
        self.compiled = len(self.made)
        self.one_by_one = interpreter(region)
        self.chosen: dict[tuple[int, ...], Boxed] = {}

    def __call__(self, box: list[Any]) -> Sequence[Any]:
        """Run the region for the inputs in ``box``, which is empty afterwards."""
        sizes = self.read(box)
        function = self.chosen.get(sizes)
        if function is None:
            return self.first(sizes, box)
        return function(_moved(sizes, box))

    def first(self, values: tuple[int, ...], box: list[Any]) -> Sequence[Any]:
        """Run the region for the first time where the symbols have ``values``."""
        sizes = dict(zip(self.names, values, strict=True))
        found = next((v for v in self.made if v.serves(sizes)), None)
        outputs = None
        if found is None and self.compiled <= MOST and self.can_serve(sizes):
            self.compiled += 1
            found, outputs = self.tried(None, sizes, box)
        elif found is not None and not found.ran:
            found, outputs = self.tried(found, sizes, box)
        function = self.unfused if found is None else found.function
        if len(self.chosen) >= REMEMBERED:
            self.chosen.clear()
        self.chosen[values] = function
        return function(_moved(values, box)) if outputs is None else outputs

    def can_serve(self, sizes: Mapping[str, int]) -> bool:
        """Tell whether a function can be compiled for ``sizes``."""
        return all(sizes[name] >= 2 for name in self.sizes)

    def tried(
        self, known: Variant | None, sizes: Mapping[str, int], box: list[Any]
    ) -> tuple[Variant | None, Sequence[Any] | None]:
        """The variant for ``sizes`` if it compiles, and what its first run returns if all is well.

        If not all is, operations run one by one for the sizes that it serves.
        """
        made: list[Variant] = []

        def compiled() -> Boxed:
            made.append(known or self.variant(sizes))
            return lambda inputs: made[0].function(_moved(sizes.values(), inputs))

        outputs = self.first_run(compiled, box)
        if not made:
            return None, None
        variant = made[0]
        variant.ran = True
        if outputs is None:
            variant.function = self.unfused
        if variant is not known:
            self.made.append(variant)
        return variant, outputs

    def variant(self, sizes: Mapping[str, int]) -> Variant:
        """The region compiled for ``sizes``."""
        made = self.compile(sizes)
        if not made.serves(sizes):
            raise ValueError("what was compiled does not serve the sizes it was compiled for")
        return made

    def unfused(self, box: list[Any]) -> Sequence[Any]:
        """Run the operations of the region one by one."""
        inputs = box[len(self.names) :]
        box.clear()
        return self.one_by_one(*inputs)


def sizes_in(inputs: Iterable[Proxy]) -> frozenset[str]:
    """The symbols in shapes and strides of ``inputs``; all others are numbers alone."""
    return frozenset(symbols_in([p for p in inputs if isinstance(p, TensorProxy)]))


def _moved(values: Iterable[int], box: list[Any]) -> list[Any]:
    """``values`` and what is in ``box``, which is empty afterwards."""
    given = [*values, *box]
    box.clear()
    return given

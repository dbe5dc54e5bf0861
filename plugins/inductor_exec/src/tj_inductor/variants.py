"""A region whose sizes are symbols: a compiled function for all sizes that it serves.

Inductor decides on sizes as it compiles, by their values in the traced call; it says on what. For
sizes for which that is not true the region is compiled again, and where that has happened often,
its operations run one by one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.extend import FusionRegion, TjWarning, evaluate_size, size_hints

from tj_inductor.graph import interpreter
from tj_inductor.symbols import places_of, symbols_in

__all__ = ["MOST", "Variant", "Variants"]

MOST = 4
"""The number of times that a region is compiled for other sizes."""

REMEMBERED = 1024
"""The number of sizes whose function is remembered."""

Boxed = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Variant:
    """A compiled function, the conditions on symbols that it was compiled under, and its text.

    The function takes a list of the values of the symbols, then of the inputs.
    """

    function: Boxed
    conditions: tuple[str, ...]
    source: str = ""

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Whether it may run for ``sizes``."""
        return all(evaluate_size(text, sizes.__getitem__) for text in self.conditions)


class Variants:
    """Runs ``region``, which ``compile`` compiles for given values of symbols."""

    def __init__(
        self, region: FusionRegion, compile: Callable[[Mapping[str, int]], Variant]
    ) -> None:
        self.key = region.key
        self.names = symbols_in(region.inputs)
        places = places_of(region.inputs)
        text = ", ".join(places[name].text for name in self.names)
        self.read: Callable[[list[Any]], tuple[int, ...]] = eval(f"lambda box: ({text},)")
        self.compile = compile
        hints = size_hints(region.inputs)
        self.made = [compile({name: hints[name] for name in self.names})]
        self.one_by_one = interpreter(region)
        self.chosen: dict[tuple[int, ...], Boxed] = {}

    def __call__(self, box: list[Any]) -> Sequence[Any]:
        """Run the region for the inputs in ``box``, which is empty afterwards."""
        sizes = self.read(box)
        function = self.chosen.get(sizes)
        if function is None:
            function = self.choose(sizes)
        given = [*sizes, *box]
        box.clear()
        return function(given)

    def choose(self, values: tuple[int, ...]) -> Boxed:
        """What runs the region where the symbols have ``values``."""
        sizes = dict(zip(self.names, values, strict=True))
        if len(self.chosen) >= REMEMBERED:
            self.chosen.clear()
        found = next((v.function for v in self.made if v.serves(sizes)), None)
        if found is None:
            found = self.compiled(sizes)
        self.chosen[values] = found
        return found

    def compiled(self, sizes: Mapping[str, int]) -> Boxed:
        """A function for ``sizes``, which none that there is serves."""
        if len(self.made) > MOST or min(sizes.values()) < 2:
            return self.unfused
        try:
            variant = self.compile(sizes)
        except Exception as error:
            said = f"tj: region {self.key} does not compile for {dict(sizes)}: {error}"
            warnings.warn(TjWarning(f"{said}; its operations run one by one"), stacklevel=4)
            return self.unfused
        if not variant.serves(sizes):
            return self.unfused
        self.made.append(variant)
        return variant.function

    def unfused(self, box: list[Any]) -> Sequence[Any]:
        """Run the operations of the region one by one."""
        inputs = box[len(self.names) :]
        box.clear()
        return self.one_by_one(*inputs)

    @property
    def source(self) -> str:
        """The text of what was generated first."""
        return self.made[0].source

"""Regions with symbolic sizes: compiled functions, each for a range of sizes.

Inductor decides on sizes by their values in the traced call, and reports these conditions. For
sizes that do not meet them, the region is compiled again, up to a limit; after that its operations
run one by one. The first run of each function is compared with the trace.

Inductor assumes that every size is at least 2 and does not report that, so operations run one by
one where a size is 0 or 1. A symbol that is no size, but a number that the program computes with,
may have any value and sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Boxed,
    Decline,
    FusionRegion,
    Proxy,
    TensorProxy,
    evaluate_size,
    interpreter,
    size_places,
    sizes_are_bound,
    symbols_in,
)
from tj_core.internal import size_hints

__all__ = ["MOST", "Variant", "Variants", "sizes_are_read", "sizes_in"]

MOST = 4
"""Largest number of times that a region is compiled again for other sizes."""

REMEMBERED = 1024
"""Number of sizes whose function is cached."""


@dataclass(eq=False, slots=True)
class Variant:
    """A compiled function, its conditions on symbols, and its text.

    The function takes a list of the values of the symbols, then of the inputs. ``kept`` is the text
    from which another process restores it. ``ran`` is set after its first run, which is compared
    with the trace.
    """

    function: Boxed
    conditions: tuple[str, ...] = ()
    source: str = ""
    kept: str = ""
    ran: bool = False

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Check that the function may run for ``sizes``."""
        return all(evaluate_size(text, sizes.__getitem__) for text in self.conditions)


class Variants:
    """Runs ``region``; ``compile`` compiles it for given values of symbols.

    ``first``, if given, is a variant for the values in the trace. If a size was 0 or 1 there,
    nothing is compiled before other sizes come. At most ``most`` more are compiled.
    """

    def __init__(
        self,
        region: FusionRegion,
        compile: Callable[[Mapping[str, int]], Variant],
        first: Variant | None = None,
        most: int = MOST,
    ) -> None:
        self.first_run = region.first_run
        self.most = most
        self.names = symbols_in(region.inputs)
        places = size_places(region.inputs, sums=True)
        text = ", ".join(places[name].text for name in self.names)
        self.read: Callable[[list[Any]], tuple[int, ...]] = eval(f"lambda box: ({text},)")
        self.compile = compile
        self.sizes = sizes_in(region.inputs)
        if first is None:
            hints = size_hints(region.inputs)
            traced = {name: hints[name] for name in self.names}
            first = compile(traced) if self.can_serve(traced) else None
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
        """Choose a function for symbols with ``values``, and run it."""
        sizes = dict(zip(self.names, values, strict=True))
        found = next((v for v in self.made if v.serves(sizes)), None)
        outputs = None
        if found is None and self.compiled <= self.most and self.can_serve(sizes):
            self.compiled += 1
            found, outputs = self.tried(None, sizes, box)
        elif found is not None and not found.ran:
            # Restored from text, or compiled for the sizes of the trace: it has never run.
            found, outputs = self.tried(found, sizes, box)
        function = self.unfused if found is None else found.function
        if len(self.chosen) >= REMEMBERED:
            # Sizes may be new in each call, as the lengths of texts are, while a process lives for
            # long.
            self.chosen.clear()
        self.chosen[values] = function
        return function(_moved(values, box)) if outputs is None else outputs

    def can_serve(self, sizes: Mapping[str, int]) -> bool:
        """Check that a function can be compiled for ``sizes``: each size is at least 2."""
        return all(sizes[name] >= 2 for name in self.sizes)

    def tried(
        self, known: Variant | None, sizes: Mapping[str, int], box: list[Any]
    ) -> tuple[Variant | None, Sequence[Any] | None]:
        """Compile the variant for ``sizes``, or take ``known``, and run it for the first time.

        Returns the variant, None if it does not compile, and the outputs, None if the first run
        failed. After a failure, operations run one by one for the sizes that the variant serves.
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
            # The variant stays in the list: it would be compiled again for the next sizes
            # otherwise.
            variant.function = self.unfused
        if variant is not known:
            self.made.append(variant)
        return variant, outputs

    def variant(self, sizes: Mapping[str, int]) -> Variant:
        """Compile the region for ``sizes``.

        :raises ValueError: if the result does not serve them.
        """
        made = self.compile(sizes)
        if not made.serves(sizes):
            raise ValueError("what was compiled does not serve the sizes it was compiled for")
        return made

    def unfused(self, box: list[Any]) -> Sequence[Any]:
        """Run the operations of the region one by one."""
        inputs = box[len(self.names) :]
        box.clear()
        return self.one_by_one(*inputs)


def sizes_are_read(calls: Sequence[BoundSymbol]) -> bool | Decline:
    """True if the inputs of ``calls`` determine all symbols in their sizes, else a `Decline`."""
    return sizes_are_bound(calls, sums=True)


def sizes_in(inputs: Iterable[Proxy]) -> frozenset[str]:
    """Symbols in shapes and strides of ``inputs``; other symbols are numbers alone."""
    return frozenset(symbols_in([p for p in inputs if isinstance(p, TensorProxy)]))


def _moved(values: Iterable[int], box: list[Any]) -> list[Any]:
    """Move the contents of ``box`` to a list after ``values``."""
    given = [*values, *box]
    box.clear()
    return given

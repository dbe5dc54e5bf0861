"""What runs a region: the executor's compiled function, or its operations one by one.

What an executor compiled is not believed: its first run is held against the trace, with the inputs
at hand. Where it raises or returns something else, the region runs without the executor from then
on, wherever it stands, and one warning says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType

from tj_core.compile.first_run import Observe, differences, rebind
from tj_core.contract.fusion import Fused, FusionRegion
from tj_core.ir.trace import BoundSymbol

__all__ = ["FirstRegionRun", "RegionKernel"]

Boxed = Callable[[list[Any]], Sequence[Any]]
"""Takes one list, which it may empty, and returns the outputs in order."""


@dataclass
class RegionKernel:
    """What runs ``region`` of ``executor``.

    ``without`` makes a function that does the same without the executor; ``warn`` is told why that
    is needed. ``failure`` is the reason, once there is one.
    """

    region: FusionRegion
    executor: str
    without: Callable[[FusionRegion], Boxed]
    warn: Callable[[RegionKernel, Exception | str], None]
    fused: Fused | None = None
    failure: str | None = None
    function: Boxed = field(init=False)
    confirmed: bool = False

    def use(self, fused: Fused) -> None:
        """Run the region as ``fused``."""
        self.fused = fused
        self.function = fused.function if fused.boxed else _boxed(fused.function)

    def fail(self, reason: Exception | str) -> None:
        """Run the region without the executor from now on.

        :raises Exception: what ``warn`` raises, in strict mode.
        """
        self.failure = str(reason) or type(reason).__name__
        self.function = self.without(self.region)
        self.confirmed = True
        self.warn(self, reason)

    def first(self, call: BoundSymbol, box: list[Any], observe: Observe) -> Sequence[Any]:
        """What the region returns for the inputs in ``box``, as the first run of ``call``."""
        if self.confirmed:
            return self.function(box)
        inputs = list(box)
        box.clear()
        try:
            result = self.function(list(inputs))
        except Exception as error:
            self.fail(error)
            return self.function(inputs)
        wrong = next(differences(call, result, observe), None)
        if wrong is not None:
            self.fail(wrong)
            return self.function(inputs)
        self.confirmed = True
        return result


class FirstRegionRun:
    """Stands for ``kernel`` in one program until ``call`` has run there once, under ``name``."""

    __slots__ = ("call", "kernel", "name", "observe", "program")

    def __init__(
        self, kernel: RegionKernel, call: BoundSymbol, observe: Observe, name: str
    ) -> None:
        self.kernel = kernel
        self.call = call
        self.observe = observe
        self.name = name
        self.program: ReferenceType[Any] | None = None

    def __call__(self, box: list[Any]) -> Sequence[Any]:
        """Run the region for the inputs in ``box``."""
        result = self.kernel.first(self.call, box, self.observe)
        rebind(self.program, self.name, self.kernel.function)
        return result


def _boxed(function: Callable[..., Sequence[Any]]) -> Boxed:
    return lambda box: function(*box)

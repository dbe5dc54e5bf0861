"""Rehearsals: compile and run programs with regions that run without their executor.

Code that an executor compiles for several programs together (`Fusion.together`) exists only after
the last of them. A rehearsal does not call it earlier; afterwards the same session has the compiled
regions of all programs, and runs them by the executor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tj_core.compile.region_kernels import FirstRegionRun, RegionKernel

if TYPE_CHECKING:
    from tj_core.contract.fusion import Boxed
    from tj_core.host.session import Session

__all__ = ["rehearsal"]


@contextlib.contextmanager
def rehearsal(session: Session) -> Iterator[None]:
    """Collect the regions that ``session`` fuses in the block; compile them together at its end.

    Callables that were jitted inside must not be called afterwards: jit them again.
    """
    rehearsed = _Rehearsed()
    with contextlib.ExitStack() as stack:
        for executor in session.executors:
            if executor.fusion is not None and executor.fusion.together is not None:
                stack.enter_context(executor.fusion.together())
        # The block ends first, then the executors compile.
        stack.enter_context(patch.object(FirstRegionRun, "__call__", rehearsed.run))
        stack.enter_context(patch.object(RegionKernel, "first_run", rehearsed.first_run))
        try:
            yield
        finally:
            rehearsed.over = True
    # What failed is compiled again where it is run, so that the program it belongs to is known.
    kernels = session.regions.kernels
    for key in [key for key, kernel in kernels.items() if kernel.failure is not None]:
        del kernels[key]


class _Rehearsed:
    """A replacement for the runs of regions; executors may keep `first_run` for later."""

    def __init__(self) -> None:
        self.over = False
        self.seen: set[Hashable] = set()
        original = RegionKernel.first_run
        rehearsed = self

        def run(first: FirstRegionRun, box: list[Any]) -> Sequence[Any]:
            return rehearsed._run(first.kernel, box)

        def first_run(
            kernel: RegionKernel, make: Callable[[], Boxed], box: list[Any]
        ) -> Sequence[Any] | None:
            if rehearsed.over:
                return original(kernel, make, box)
            make()
            return _without(kernel, box)

        self.run, self.first_run = run, first_run

    def _run(self, kernel: RegionKernel, box: list[Any]) -> Sequence[Any]:
        """Let the executor compile for new sizes; otherwise run the operations."""
        sizes = tuple(value for value in box if isinstance(value, int))
        if sizes and kernel.failure is None and (kernel.region.key, sizes) not in self.seen:
            self.seen.add((kernel.region.key, sizes))
            return kernel.function(box)
        return _without(kernel, box)


def _without(kernel: RegionKernel, box: list[Any]) -> Sequence[Any]:
    inputs = list(box)
    box.clear()
    return kernel.without(kernel.region)(inputs)

"""Values that would exist only inside fused kernels, and so take no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tj_core.extend import BoundSymbol, makes_views, storage_roots, value_names

if TYPE_CHECKING:
    from tj_autograd.split.costs import Costs

__all__ = ["within_kernels"]


def within_kernels(calls: Sequence[BoundSymbol], outputs: Any, costs: Costs) -> frozenset[str]:
    """Names of values that fused kernels of ``calls`` make and that nothing outside of a kernel
    reads.

    A kernel ends at a call that is not fused: a value that is read again after a matrix product is
    written to memory before it.
    """
    roots = storage_roots(calls)
    kernel: dict[str, int] = {}
    inside: set[str] = set()
    for call in calls:
        fused = costs.fuses(call)
        read = {roots.get(p.name, p.name) for p in call.flat_args}
        here = max((kernel.get(name, 0) for name in read), default=0)
        if not (fused and makes_views(call)):
            inside -= {name for name in read if not fused or kernel.get(name, 0) != here}
        for p in call.defined():
            kernel[p.name] = here if fused else here + 1
            if fused and roots[p.name] == p.name:
                inside.add(p.name)
    left = {roots.get(name, name) for name in value_names(outputs)}
    return frozenset(inside - left)

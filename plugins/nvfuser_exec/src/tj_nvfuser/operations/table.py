"""All operations that regions may have, by the names of their symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_nvfuser.operations import (
    activations,
    attention,
    indexing,
    norms,
    pointwise,
    products,
    random,
    reductions,
    shapes,
)

if TYPE_CHECKING:
    from tj_nvfuser.operations.call import Operations

__all__ = ["OPERATIONS"]

OPERATIONS: Operations = {
    name: operation
    for part in (
        pointwise,
        activations,
        reductions,
        norms,
        shapes,
        indexing,
        products,
        attention,
        random,
    )
    for name, operation in part.OPERATIONS.items()
}
"""Translation of each operator; others run outside of regions."""

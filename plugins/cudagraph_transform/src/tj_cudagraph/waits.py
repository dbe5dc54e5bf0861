"""Operations that no graph can hold: they wait for the device, or read memory beyond their
argument.

Metadata does not show that. The list is our own, with names of PyTorch 2.13's operators; it has not
been tried on a GPU. A call that is missing here fails at capture, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_core.extend import BoundSymbol, RuleTable, TensorProxy, leaves

__all__ = ["WAITS", "waits"]

WAITS = "waits"
"""Name of the rule table: a function from a call to a bool, True if no graph can hold it."""

Waits = Callable[[BoundSymbol], bool]

BY_MASK = (
    "aten.index.Tensor",
    "aten.index_put.default",
    "aten._unsafe_index.Tensor",
    "aten._unsafe_index_put.default",
)
CHECKED = (
    "linalg_eig", "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh",
    "_linalg_eigh", "_linalg_eigvals", "linalg_inv", "linalg_lu", "linalg_lu_factor",
    "linalg_lstsq", "_linalg_slogdet", "_linalg_det", "_linalg_solve_ex", "linalg_solve",
    "_linalg_svd", "linalg_svd", "linalg_qr", "linalg_ldl_factor", "linalg_matrix_exp",
    "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "ormqr", "lu_unpack",
    "linalg_householder_product", "triangular_solve",
)  # fmt: skip
"""Operators that read a status computed by a library, or run in a library that waits."""
COUNTED = (
    "_linalg_check_errors", "bincount", "histc", "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts", "mode", "segment_reduce", "_ctc_loss", "equal", "is_nonzero",
    "_local_scalar_dense", "_unique2", "nonzero", "masked_select", "unique_dim",
    "unique_consecutive", "_assert_scalar",
)  # fmt: skip
"""Operators that read values on the host."""
PLACED = ("as_strided",)
"""Operators that read memory by offset: it may lie outside of the argument, and so of its copy."""


def waits() -> RuleTable[Waits]:
    """Make the table for PyTorch's operations."""
    table: RuleTable[Waits] = RuleTable(WAITS, rule_type=Callable)
    for key in BY_MASK:
        table.set(key, by_mask)
    for name in (*CHECKED, *COUNTED, *PLACED):
        table.set(f"aten.{name}.default", always)
    return table


def always(call: BoundSymbol) -> bool:
    """True for any arguments."""
    return True


def by_mask(call: BoundSymbol) -> bool:
    """Check that an index is a mask: its number of true elements is read on the host."""
    indices: Any = call.args[1] if len(call.args) > 1 else ()
    found = (x for x in leaves(indices) if isinstance(x, TensorProxy))
    return any(x.dtype.name in ("bool", "uint8") for x in found)

"""Operations that wait for the device, or read memory by its place, though their metadata does not
say so: no graph can hold them.

The list is our own, its names are those of PyTorch 2.13's operators; nothing of it has run on a
GPU. A call that is missing here fails when it is captured, which is no more than a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_core.extend import BoundSymbol, RuleTable, TensorProxy, leaves

__all__ = ["WAITS", "waits"]

WAITS = "waits"
"""The table: a function from a call to whether it waits for the device."""

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
"""They look at a status that a library computes, or run in one that waits."""
COUNTED = (
    "_linalg_check_errors", "bincount", "histc", "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts", "mode", "segment_reduce", "_ctc_loss", "equal", "is_nonzero",
    "_local_scalar_dense", "_unique2", "nonzero", "masked_select", "unique_dim",
    "unique_consecutive", "_assert_scalar",
)  # fmt: skip
"""They bring numbers to the host."""
PLACED = ("as_strided",)
"""It reads memory that its argument need not show, which a copy of it has not."""


def waits() -> RuleTable[Waits]:
    """What is known of PyTorch's operations; `by_mask` of those whose arguments decide."""
    table: RuleTable[Waits] = RuleTable(WAITS, rule_type=Callable)
    for key in BY_MASK:
        table.set(key, by_mask)
    for name in (*CHECKED, *COUNTED, *PLACED):
        table.set(f"aten.{name}.default", always)
    return table


def always(call: BoundSymbol) -> bool:
    """Whatever the arguments are."""
    return True


def by_mask(call: BoundSymbol) -> bool:
    """Whether an index is a mask: how many elements it has is found out first."""
    indices: Any = call.args[1] if len(call.args) > 1 else ()
    found = (x for x in leaves(indices) if isinstance(x, TensorProxy))
    return any(x.dtype.name in ("bool", "uint8") for x in found)

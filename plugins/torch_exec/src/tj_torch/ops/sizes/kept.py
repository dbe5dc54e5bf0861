"""Sizes that depend on data, where a program asserts what they are.

``x[mask].view(2, 3)`` asserts that the mask has six places. PyTorch's symbolic shapes then put 6 in
place of the symbol everywhere: no size of the trace would depend on data, and a test of the
assertion would compare 6 with 6. The assertion alone says the same, and a call tests it.
"""

from __future__ import annotations

from typing import Any

from tj_torch.ops.sizes.lazy_sympy import sympy

__all__ = ["replaces_data"]


def replaces_data(relation: Any) -> bool:
    """Test for an equality by which PyTorch would replace a symbol of data."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return isinstance(relation, sympy.Eq) and bool(free_unbacked_symbols(relation))

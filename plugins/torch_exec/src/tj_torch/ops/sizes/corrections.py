"""Corrections of PyTorch's symbolic sizes."""

from __future__ import annotations

import functools
from typing import Any

from tj_torch.ops.sizes.lazy_sympy import sympy

__all__ = ["know_integers", "replaces_data"]


def replaces_data(relation: Any) -> bool:
    """Test for an equality by which PyTorch would replace a symbol of data.

    ``x[mask].view(2, 3)`` asserts that the mask has six places. With 6 in place of the symbol
    everywhere, no size of the trace would depend on data, and a test of the assertion would compare
    6 with 6. The assertion alone says the same, and a call tests it.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return isinstance(relation, sympy.Eq) and bool(free_unbacked_symbols(relation))


@functools.cache
def know_integers() -> None:
    """Let SymPy know that ``n & 127`` of a symbol is an integer, in the whole process from now on.

    Inductor computes in float32 with numbers that may be none, and reads the bits of its result as
    an integer of 64 bits (2.10 to 2.15). SymPy remembers what it knows of each expression, so it
    must know this before the first one is made.
    """
    from tj_torch.torch_private.shapes import (
        BitwiseFn_bitwise_and,
        BitwiseFn_bitwise_or,
        BitwiseFn_bitwise_xor,
    )

    for function in (BitwiseFn_bitwise_and, BitwiseFn_bitwise_or, BitwiseFn_bitwise_xor):
        function.is_integer = True

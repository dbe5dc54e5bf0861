"""Functions and methods that Python's operators run on tensors, as ``torch.Tensor`` defines."""

from __future__ import annotations

__all__ = ["BINARY", "INPLACE", "ITEMS", "REFLECTED", "UNARY", "operator_name"]

UNARY = {
    "abs": "abs",
    "inv": "bitwise_not",
    "invert": "bitwise_not",
    "neg": "neg",
    "pos": "positive",
}
"""``op(x)`` is ``torch.<function>(x)``. (``~`` refuses floats, as does ``bitwise_not``.)"""

BINARY = {
    "add": "add",
    "and_": "bitwise_and",
    "div": "div",
    "eq": "eq",
    "floordiv": "floor_divide",
    "ge": "ge",
    "gt": "gt",
    "le": "le",
    "lt": "lt",
    "matmul": "matmul",
    "mod": "remainder",
    "mul": "mul",
    "ne": "ne",
    "or_": "bitwise_or",
    "pow": "pow",
    "sub": "sub",
    "truediv": "div",
    "xor": "bitwise_xor",
}
"""``x op y`` is ``torch.<function>(x, y)``. The shifts are missing: they are operators of their
own (``aten::__lshift__``) next to ``torch.bitwise_left_shift``."""

REFLECTED = {
    "add": ("add", True),
    "and_": ("bitwise_and", False),
    "eq": ("eq", True),
    "floordiv": ("floor_divide", False),
    "ge": ("le", True),
    "gt": ("lt", True),
    "le": ("ge", True),
    "lshift": ("bitwise_left_shift", False),
    "lt": ("gt", True),
    "matmul": ("matmul", False),
    "mod": ("remainder", False),
    "mul": ("mul", True),
    "ne": ("ne", True),
    "or_": ("bitwise_or", False),
    "pow": ("pow", False),
    "rshift": ("bitwise_right_shift", False),
    "sub": ("rsub", True),
    "xor": ("bitwise_xor", False),
}
"""``1 op x``: the function, and true if it takes ``(x, 1)``. Division, a reciprocal and a product,
stays the method ``__rtruediv__``."""

INPLACE = {
    "iadd": "add_",
    "iand": "bitwise_and_",
    "idiv": "div_",
    "ifloordiv": "floor_divide_",
    "ilshift": "__ilshift__",
    "imod": "remainder_",
    "imul": "mul_",
    "ior": "bitwise_or_",
    "ipow": "pow_",
    "irshift": "__irshift__",
    "isub": "sub_",
    "itruediv": "div_",
    "ixor": "bitwise_xor_",
}
"""``x op= y`` is the method ``x.<name>(y)``. A tensor has no ``@=``: it is ``x = x @ y``."""

ITEMS = {
    "contains": "__contains__",
    "delitem": "__delitem__",
    "getitem": "__getitem__",
    "lshift": "__lshift__",
    "rshift": "__rshift__",
    "setitem": "__setitem__",
}
"""Operators that stay methods."""


def operator_name(method: str) -> tuple[str, bool] | None:
    """Operator that calls ``method``, and true if reflected: (sub, True) for ``__rsub__``."""
    if not (method.startswith("__") and method.endswith("__")):
        return None
    word = method[2:-2]
    for name in (word, f"{word}_"):
        if name in UNARY or name in BINARY or name in INPLACE:
            return name, False
    for name in (word[1:], f"{word[1:]}_"):
        if word.startswith("r") and name in REFLECTED:
            return name, True
    return None

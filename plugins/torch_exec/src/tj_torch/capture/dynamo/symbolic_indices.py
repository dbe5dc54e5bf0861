"""Indices such as ``x[:, n]`` with a number that is a symbol, as calls of ``select``.

PyTorch's parser of an index takes a symbol alone, as in ``x[n]``, and asks for its value where it
is one of several (`applySlicing` in torch/csrc/autograd/python_variable_indexing.cpp, up to 2.15).
Each value would be a program of its own.
"""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["viewed"]


def viewed(tx: Any, x: Any, index: Any) -> Any | None:
    """The view ``x[index]`` of Dynamo's variables; None if ``index`` is no tuple with a symbol.

    A tuple with tensors or bools in it is none of these: it does not make a view.
    """
    from tj_torch.torch_private.dynamo import TensorVariable, TupleVariable

    if type(x) is not TensorVariable or not isinstance(index, TupleVariable):
        return None
    items = [item.realize() for item in index.items]
    kinds = [_kind(item) for item in items]
    if "symbol" not in kinds or None in kinds:
        return None
    found = _without_symbols(tx, x, items, kinds)
    for place, symbol in reversed(_places(x, items, kinds)):
        found = found.call_method(tx, "select", [_constant(place), symbol], {})
    return found


def _kind(item: Any) -> str | None:
    """The kind of an item of an index; None for another one."""
    from tj_torch.torch_private.dynamo import ConstantVariable, SliceVariable, SymNodeVariable

    if isinstance(item, SymNodeVariable):
        return "symbol" if item.python_type() is int else None
    if isinstance(item, SliceVariable):
        return "slice"
    if not isinstance(item, ConstantVariable):
        return None
    value = item.value
    if value is None or value is ...:
        return "new" if value is None else "rest"
    return "number" if type(value) is int else None


def _without_symbols(tx: Any, x: Any, items: list[Any], kinds: list[str | None]) -> Any:
    """``x`` under the index with whole dimensions in the place of symbols."""
    from tj_torch.torch_private.dynamo import BuiltinVariable, SliceVariable, TupleVariable

    pairs = [*zip(items, kinds, strict=True)]
    if all(kind in ("symbol", "rest") or _is_whole(item) for item, kind in pairs):
        return x
    whole = SliceVariable([_constant(None)] * 3)
    others = [whole if kind == "symbol" else item for item, kind in pairs]
    return BuiltinVariable(operator.getitem).call_function(tx, [x, TupleVariable(others)], {})


def _is_whole(item: Any) -> bool:
    """Test for ``:``."""
    from tj_torch.torch_private.dynamo import SliceVariable

    return isinstance(item, SliceVariable) and all(
        part.is_python_constant() and part.as_python_constant() is None for part in item.items
    )


def _places(x: Any, items: list[Any], kinds: list[str | None]) -> list[tuple[int, Any]]:
    """The symbols of an index, each with its dimension in the result of `_without_symbols`."""
    taken = sum(kind in ("symbol", "slice", "number") for kind in kinds)
    lengths = {"new": 1, "slice": 1, "symbol": 1, "number": 0, "rest": x.ndim - taken}
    found, place = [], 0
    for kind, item in zip(kinds, items, strict=True):
        if kind == "symbol":
            found.append((place, item))
        place += lengths[str(kind)]
    return found


def _constant(value: Any) -> Any:
    from tj_torch.torch_private.dynamo import ConstantVariable

    return ConstantVariable.create(value)

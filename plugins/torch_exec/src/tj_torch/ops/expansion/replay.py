"""Run a body on real values, which computes the call's results without its writes."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tj_core.extend import (
    PLAIN_CONTEXT,
    Body,
    BoundSymbol,
    Constant,
    Proxy,
    Symbol,
    formal_index,
    leaves,
    map_tree,
)

from tj_torch.ops.context.entering import entered

__all__ = ["replay", "resolve"]


_ROOTS = {"aten": torch.ops.aten, "math": math, "operator": operator, "torch": torch}


def resolve(symbol: Symbol) -> Any:
    """Operator for a symbol in a body.

    :raises AttributeError: if PyTorch or Python has no such operator.
    """
    found: Any = _ROOTS[symbol.namespace]
    for part in symbol.path.split("."):
        found = getattr(found, part)
    return found


def replay(
    body: Body,
    arguments: Mapping[int, Any],
    seen: Callable[[BoundSymbol, Proxy, Any], object] | None = None,
) -> tuple[Any, dict[int, Any]]:
    """Run ``body``; return its outputs, and the new values of written arguments by flat index.

    ``arguments`` are the call's tensors by flat index, which are not written. ``seen`` is called
    with each value that a call makes.
    """
    env = {p.name: arguments[formal_index(p.name)] for p in body.inputs}
    for call in body.calls:
        for formal, actual in _made(call, env):
            env[formal.name] = actual
            if seen is not None:
                seen(call, formal, actual)
    updates = {i: _value(value, env) for i, value in body.updates}
    return _value(body.outputs, env), updates


def _value(tree: Any, env: Mapping[str, Any]) -> Any:
    def leaf(item: Any) -> Any:
        if isinstance(item, Proxy):
            return env[item.name]
        return item.value if isinstance(item, Constant) else item

    return map_tree(leaf, tree)


def _made(call: BoundSymbol, env: Mapping[str, Any]) -> list[tuple[Proxy, Any]]:
    context = contextlib.nullcontext() if call.context == PLAIN_CONTEXT else entered(call.context)
    with context:
        kwargs = {k: _value(v, env) for k, v in call.kwargs}
        result = resolve(call.symbol)(*_value(call.args, env), **kwargs)
    pairs = zip(leaves(call.outputs), _results(result), strict=True)
    return [(formal, actual) for formal, actual in pairs if isinstance(formal, Proxy)]


def _results(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [leaf for item in result for leaf in _results(item)]
    return [result]

"""Find the Python function that calls an operator with the least overhead.

``aten.sum.dim_IntList`` parses its arguments by the operator's schema, which takes microseconds
longer than the generated code of ``torch.sum``. The operator that such a function dispatches to
depends only on the kinds of its arguments, so it is determined once per kind, by a trial call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tj_core.extend import BoundSymbol, Constant, NumberProxy, SymDim, TensorProxy, map_tree

from tj_torch.ops.values.convert import dtype_to_torch
from tj_torch.runtime.checks import assert_number
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import (
    OpOverload,
    TorchDispatchMode,
    pytree,
    without_dispatch_modes,
)

__all__ = ["entry"]

_known: dict[tuple[object, ...], Callable[..., Any] | None] = {}
"""Results of `entry` by symbol and kinds of arguments.

One cache per process: the answer is PyTorch's and the same for all sessions, since neither plugins
nor options are asked. Keys hold no sizes and no tensors, so their number is bounded by PyTorch's
operators and the kinds of arguments that programs give them.
"""


def entry(call: BoundSymbol) -> Callable[..., Any] | None:
    """Python function that dispatches to the operator of ``call`` for such arguments.

    None if none is known.
    """
    key = (call.symbol, _kind(call.args), *((name, _kind(x)) for name, x in call.kwargs))
    if key not in _known:
        _known[key] = _find(call)
    return _known[key]


def _find(call: BoundSymbol) -> Callable[..., Any] | None:
    if call.symbol.qualname == str(private.ASSERTED_NUMBER):
        return assert_number
    name, _, overload = call.symbol.path.rpartition(".")
    operator = getattr(getattr(torch.ops.aten, name, None), overload, None)
    tensors = [p for p in call.flat_args if isinstance(p, TensorProxy)]
    if (
        not isinstance(operator, OpOverload)
        or any(p.subclass for p in tensors)  # its handler may treat function and operator apart
        or not (tensors or dict(call.kwargs).get("device"))  # depends on the default device
    ):
        return None
    args, kwargs = map_tree(_sample, (call.args, dict(call.kwargs)))
    wanted = _dispatched(operator, args, kwargs)
    if wanted is None or wanted[0] is not operator:
        return None  # a composite: its parts are dispatched, or nothing is
    for function in private.python_functions(name):
        if _same(_dispatched(function, args, kwargs), wanted):
            return function
    return None


# ---------------------------------------------------------------------------- kinds of arguments


def _kind(tree: Any) -> object:
    """Facts of ``tree`` by which PyTorch chooses between an operator's overloads."""
    if isinstance(tree, list):
        # A list of tensors has one kind for any length, as for `torch.cat`.
        return frozenset(map(_kind, tree))
    if isinstance(tree, tuple):
        return tuple(map(_kind, tree))
    if isinstance(tree, TensorProxy):
        # A tensor without dimensions is accepted as a number.
        return TensorProxy, tree.dtype, not tree.shape, tree.subclass is None
    return type(_sample(tree))


def _sample(leaf: Any) -> Any:
    """Sample value of the kind of ``leaf``."""
    if isinstance(leaf, TensorProxy):
        shape = (1,) if leaf.shape else ()
        return torch.empty(shape, dtype=dtype_to_torch(leaf.dtype), device="meta")
    if isinstance(leaf, NumberProxy):
        return {"bool": True, "int": 1, "float": 1.0, "complex": 1j}[leaf.kind]
    if isinstance(leaf, SymDim):
        return 1
    return leaf.value if isinstance(leaf, Constant) else leaf


# ---------------------------------------------------------------------------- what is dispatched


# Not an Exception, which Python code on the way might catch.
class _Stop(BaseException):
    """Stop the trial call: its first operator is known, and need not run."""


class _First(TorchDispatchMode):
    """Mode that keeps the first operator dispatched and stops before running it."""

    found: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch's wrapper of the method imports Dynamo, where a package is loaded, too. Where
        # programs are compiled, its hook is off.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.found = func, args, kwargs or {}
        raise _Stop


def _dispatched(
    function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    first = _First()  # type: ignore[no-untyped-call]
    try:
        with without_dispatch_modes(), torch.no_grad(), first:
            function(*args, **kwargs)
    except (_Stop, Exception):  # it may not take such arguments at all
        pass
    return first.found


def _same(one: Any, other: Any) -> bool:
    """Test for equal operators and arguments; tensors must be the same objects."""
    (mine, structure), (theirs, wanted) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    return structure == wanted and all(
        a is b or (type(a) is type(b) and not isinstance(a, torch.Tensor) and bool(a == b))
        for a, b in zip(mine, theirs, strict=True)
    )

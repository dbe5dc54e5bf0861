"""Translation of ATen calls to a definition for nvFuser."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Constant,
    FusionRegion,
    NumberProxy,
    Proxy,
    TensorProxy,
    leaves,
    map_tree,
    size_places,
)
from tj_torch.extend import tensor_proxy

from tj_nvfuser.definition import (
    COMPUTE,
    Definition,
    Number,
    Seeds,
    Value,
    dtype_of,
    same_shape,
)
from tj_nvfuser.operations.call import Call, Operation
from tj_nvfuser.operations.table import OPERATIONS
from tj_nvfuser.refusal import Refused, refuse

__all__ = ["states", "translated", "tried", "without_tensors"]

Values = dict[str, Any]


def translated(region: FusionRegion, rounding: bool = True) -> Definition:
    """Translate ``region``; without ``rounding``, values stay in float32 between operations.

    :raises Refused: if a call has no definition.
    """
    device = next(p.device.type for p in region.outputs if isinstance(p, TensorProxy))
    definition = Definition(size_places(region.inputs), device)
    seeded = states(region.body.calls)
    values: Values = {p.name: given(definition, p, seeded) for p in region.inputs}
    for call in region.body.calls:
        put(definition, call, values, rounding)
    for p in region.outputs:
        assert isinstance(p, TensorProxy)
        definition.output(definition.cast(made_before(values, p), dtype_of(p)), p)
    return definition


def tried(call: BoundSymbol) -> Definition:
    """Translate ``call`` alone, with all numbers known; the definition is not run.

    :raises Refused: if it has none.
    """
    definition = Definition()
    named = without_tensors(call)
    seeded = states([named])
    values: Values = {p.name: given(definition, p, seeded) for p in named.flat_args}
    put(definition, named, values, rounding=True)
    return definition


def without_tensors(call: BoundSymbol) -> BoundSymbol:
    """Replace each tensor constant of ``call`` by a proxy: regions take these as inputs."""

    def named(leaf: Any) -> Any:
        if not (isinstance(leaf, Constant) and isinstance(leaf.value, torch.Tensor)):
            return leaf
        return tensor_proxy(f"constant_{id(leaf)}", leaf.value)

    return call.replace(args=map_tree(named, call.args), kwargs=map_tree(named, call.kwargs))


def states(calls: Iterable[BoundSymbol]) -> set[str]:
    """Names of arguments of ``calls`` that are states of random numbers."""
    found = (c for c in calls if (op := OPERATIONS.get(c.symbol.qualname)) and op.seeded)
    return {call.args[0].name for call in found}


def given(definition: Definition, p: Proxy, seeded: Collection[str]) -> Value | Number | Seeds:
    """Add the input ``p`` to the definition.

    :raises Refused: if it is neither a tensor, nor a size, nor a state.
    """
    if p.name in seeded:
        return definition.seeds()
    if isinstance(p, NumberProxy):
        refuse(p.kind != "int" or not p.expr, f"{p.name} is no size")
        return definition.number(p)
    if not isinstance(p, TensorProxy):
        raise Refused(f"{p.name} is no tensor")
    return definition.tensor(p)


def made_before(values: Values, p: Proxy) -> Any:
    """The value of ``p`` in the definition.

    :raises Refused: if it is a result that nvFuser does not make.
    """
    refuse(p.name not in values, f"nvFuser makes no {p.name}")
    return values[p.name]


def put(definition: Definition, call: BoundSymbol, values: Values, rounding: bool) -> None:
    """Append ``call``, and add its results to ``values``."""
    operation = OPERATIONS.get(call.symbol.qualname)
    if operation is None:
        raise Refused("nvFuser has no such operation")

    def argument(leaf: Any) -> Any:
        if isinstance(leaf, Proxy):
            return made_before(values, leaf)
        return leaf.value if isinstance(leaf, Constant) else leaf

    args, kwargs = map_tree(argument, call.args), map_tree(argument, call.kwargs)
    outputs = tuple(leaves(call.outputs))
    made = bound(operation, Call(definition, outputs), *args, **dict(kwargs))()
    results = made if isinstance(made, list | tuple) else (made,)
    for value, p in zip(results, outputs, strict=True):
        if isinstance(p, TensorProxy) and value is not None:
            values[p.name] = result(definition, value, p, rounding)


def bound(operation: Operation, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Bind the arguments to the operation's translation.

    :raises Refused: if it does not take these arguments.
    """
    try:
        # An argument that no translation names, as of a newer PyTorch, must not be ignored.
        given = inspect.signature(operation.translate).bind(*args, **kwargs)
    except TypeError as error:
        raise Refused(f"its arguments are not known: {error}") from None
    # Called outside of the `try`: a TypeError from there is an error of ours, and no refusal.
    return lambda: operation.translate(*given.args, **given.kwargs)


def result(definition: Definition, value: Any, p: TensorProxy, rounding: bool) -> Value:
    """``value`` cast to the data type of ``p``.

    :raises AssertionError: if it has another shape, which is an error of the translation.
    """
    assert isinstance(value, Value), f"{p.name} has no value"
    same = same_shape(value.shape, p.shape) or symbolic(value) or symbolic(p)
    assert same, f"{value.shape} is not {p.shape}"
    dtype = dtype_of(p)
    kept = not rounding and COMPUTE[dtype] == value.dtype
    value = value if kept else definition.cast(value, dtype)
    # With the trace's sizes: later calls compare symbols by the expressions that stand there.
    return Value(value.name, value.dtype, p.shape)


def symbolic(x: TensorProxy | Value) -> bool:
    """Check for symbolic sizes: equal ones may have different expressions."""
    return not all(isinstance(n, int) for n in x.shape)

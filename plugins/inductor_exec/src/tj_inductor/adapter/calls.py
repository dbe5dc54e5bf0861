"""Operators that generated code calls as they are, and layouts of what it gives them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tj_inductor.adapter.features import need
from tj_inductor.adapter.names import ONEDNN, STRIDES

__all__ = [
    "BMM",
    "CONVOLUTION",
    "call_as_it_is",
    "declared_call",
    "extern_call",
    "laid_out_call",
    "new_value_call",
    "stands_for",
]


def call_as_it_is(graph: torch.fx.GraphModule) -> None:
    """Let operators of oneDNN be calls in generated code, with the arguments that they have.

    They come from calls that another executor has claimed. Inductor's own patterns and lowerings
    for them count on weights that its passes have packed, and values inside of a graph get other
    strides where that suits a convolution. oneDNN takes 1,000 times as long for a product whose
    weight has gaps between its rows.
    """
    from tj_inductor.adapter.names import OpOverload

    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target.namespace in CALLED:
            need([ONEDNN])
            node.target = extern_call(node.target)


CALLED = ("mkldnn", "tj_onednn")
"""Libraries of operators that are called as they are."""


@functools.cache
def extern_call(operator: Any) -> Callable[..., Any]:
    """``operator`` for tensors; else its lowering to a call, as patterns put them in graphs."""
    from tj_inductor.adapter.names import V, fallback_handler

    lowering = fallback_handler(operator, add_to_fallback_set=False)

    def extern(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, torch.Tensor) for x in args):
            return operator(*args, **kwargs)
        if operator.name() == PRODUCT:
            given = V.graph.current_node.args
            args = (_by_rows(args[0], given[0]), _without_gaps(args[1], given[1]), *args[2:])
        if images and V.graph.layout_opt:
            args = tuple(map(_by_pixels, args))
        return lowering(*args, **kwargs)

    images = torch.Tag.flexible_layout in operator.tags
    product = BMM if operator.name() == PRODUCT or operator.name().endswith("::bmm") else None
    extern.stands_for = CONVOLUTION if images else product  # type: ignore[attr-defined]
    return _lowered(extern, "extern_" + operator.name().replace("::", "_"), operator)


@functools.cache
def new_value_call(operator: Any) -> Callable[..., Any]:
    """``operator``, which returns a value with another part, for graphs: never a write in place."""
    from tj_inductor.adapter.names import lowerings

    def new_value(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, torch.Tensor) for x in args):
            return operator(*args, **kwargs)
        return lowerings[operator](*args, **kwargs)

    return _lowered(new_value, "new_value_" + operator.name().replace("::", "_"), operator)


def stands_for(node: torch.fx.Node) -> Any:
    """The operator of ATen by which layouts are chosen around ``node``, a call of another executor:
    a convolution, or a product. None for other nodes.
    """
    return getattr(node.target, "stands_for", None)


def _by_pixels(value: Any) -> Any:
    """Inductor's value ``value``, in channels_last if it has the dimensions of images."""
    from tj_inductor.adapter.names import ExternKernel

    images = hasattr(value, "get_size") and len(value.get_size()) == 4
    return ExternKernel.require_channels_last(value) if images else value


@functools.cache
def laid_out_call() -> Callable[..., Any]:
    """A function of a tensor and strides, for graphs: the tensor with these strides.

    They may differ from those that it has in dimensions of size one. ``aten.as_strided`` would
    not do: of a part of a value, Inductor takes it to count from the start of the whole value.
    """
    from tj_inductor.adapter.names import ExternKernel

    def on_tensor(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
        return value.as_strided(value.shape, strides)

    def laid_out(value: Any, strides: Sequence[int]) -> Any:
        if isinstance(value, torch.Tensor):
            return on_tensor(value, strides)
        return ExternKernel.require_exact_strides(value, strides)

    need([STRIDES])
    laid_out.is_view = True  # type: ignore[attr-defined]
    return _lowered(laid_out, "laid_out", on_tensor)


@functools.cache
def declared_call() -> Callable[..., Any]:
    """A function of a tensor, for graphs: the tensor, declared to be contiguous, as it is.

    Inductor propagates metadata anew, and declares the strides of results by it.
    """

    def declared(value: Any) -> Any:
        return value.contiguous() if isinstance(value, torch.Tensor) else value

    return _lowered(declared, "declared", declared)


def _lowered(
    function: Callable[..., Any], name: str, on_tensors: Callable[..., Any]
) -> Callable[..., Any]:
    """``function``, which computes Inductor's values, as a target ``name`` of nodes in graphs."""
    function._inductor_lowering_function = True  # type: ignore[attr-defined]
    # From 2.14 on what it returns is asked of this where an argument's strides have changed.
    function._inductor_lowering_output_metadata_fn = on_tensors  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = name
    # Inductor's cache of graphs with symbols pickles functions in them by name.
    setattr(sys.modules[__name__], name, function)
    return function


PRODUCT = "mkldnn::_linear_pointwise"

CONVOLUTION, BMM = torch.ops.aten.convolution.default, torch.ops.aten.bmm.default


def _by_rows(value: Any, node: Any) -> Any:
    """Inductor's value of ``node``, contiguous if it was traced so; a matrix is left as it is.

    Between convolutions, Inductor takes four dimensions for an image, whose channels oneDNN's
    operator would gather again, in a copy for each product.
    """
    traced = _traced(node)
    if traced is None or traced.dim() == 2 or not traced.is_contiguous():
        return value
    return _laid_out(value, traced)


def _without_gaps(value: Any, node: Any) -> Any:
    """Inductor's value of the matrix ``node``, without gaps between rows or columns."""
    traced = _traced(node)
    if traced is None:
        return value
    columns, rows = traced.t().is_contiguous(), traced.is_contiguous()
    return _laid_out(value, traced if columns or rows else traced.contiguous())


def _traced(node: Any) -> torch.Tensor | None:
    """The fake tensor of ``node``, if it has strides; else None."""
    traced = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    strided = isinstance(traced, torch.Tensor) and traced.layout is torch.strided
    return traced if strided else None


def _laid_out(value: Any, like: torch.Tensor) -> Any:
    """Inductor's ``value`` with the strides of ``like``."""
    from tj_inductor.adapter.names import ExternKernel

    return ExternKernel.require_exact_strides(value, like.stride())

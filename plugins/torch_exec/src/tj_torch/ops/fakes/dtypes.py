"""Data types of results as PyTorch's kernels choose them, where its fake kernels say others.

Most differ for arguments of two types, as autocast makes them: half-precision activations, and
parameters in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tj_torch.torch_private.eager import (
    batch_norm_no_update,
    batch_norm_with_update,
    batch_norm_with_update_functional,
    native_batch_norm_legit,
    native_batch_norm_legit_functional,
    native_batch_norm_legit_no_stats,
    native_batch_norm_legit_no_training,
    softmax_backward,
)

__all__ = ["check_one_type", "in_their_types"]

Types = dict[int, torch.dtype]
"""Data types of results, by place."""


def in_their_types(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Result of ``func(*args)`` on fake tensors, each value in the data type of the kernels."""
    rule = RULES.get(func)
    if rule is None or result is NotImplemented:  # as for subclasses that the mode does not know
        return result
    several = isinstance(result, tuple)
    values = list(result) if several else [result]
    for place, dtype in rule(*args).items():
        value = values[place]
        if isinstance(value, torch.Tensor) and value.dtype is not dtype:
            values[place] = value.to(dtype)
    return tuple(values) if several else values[0]


def check_one_type(func: Any, args: tuple[Any, ...]) -> None:
    """Raise for products of several data types, which fake kernels take, as kernels on the CPU do.

    A program is captured with it: eager then runs, and raises in the kernel's words.
    """
    given = args[: OF_ONE_TYPE.get(func, 0)]
    tensors = [a for a in given if isinstance(a, torch.Tensor) and a.device.type == "cpu"]
    if len({t.dtype for t in tensors}) > 1:
        raise RuntimeError(f"{func}: tensors of several data types")


def _saved(source: torch.Tensor, *rest: Any) -> Types:
    """Saved statistics of a norm: float32 on the CPU if a parameter is, else of the input's type.

    The tensors after the input are parameters and running statistics. See ``is_mixed_type`` in
    PyTorch's ``mixed_data_type.h``.
    """
    if source.device.type != "cpu":
        return {}
    wide = any(isinstance(p, torch.Tensor) and p.dtype is torch.float32 for p in rest)
    return dict.fromkeys((1, 2), torch.float32 if wide else source.dtype)


def _of_updating_batch_norm(first: int, source: torch.Tensor, *rest: Any) -> Types:
    """The updated statistics, from place ``first`` on, have the types of the arguments."""
    updated = enumerate(rest[2:4], first)
    return _saved(source, *rest) | {i: running.dtype for i, running in updated}


def _of_layer_norm_backward(
    grad: Any, source: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, *rest: Any
) -> Types:
    return _gradients(source, weight, bias)


def _of_group_norm_backward(
    grad: Any, source: Any, mean: Any, rstd: Any, weight: Any, *rest: Any
) -> Types:
    return _gradients(source, weight, weight)


def _gradients(*arguments: torch.Tensor | None) -> Types:
    return {i: a.dtype for i, a in enumerate(arguments) if a is not None}


def _of_softmax_backward(grad: torch.Tensor, output: Any, dim: int, given: torch.dtype) -> Types:
    """The tangent's type, unless float16 was made float32 by the kernel."""
    made = grad.dtype is torch.float32 and given is torch.float16
    return {0: given if made else grad.dtype}


def _like(place: int, *args: Any) -> Types:
    """The type of argument ``place``."""
    return {0: args[place].dtype}


def _of_addr(*args: torch.Tensor) -> Types:
    """The common type; a tensor without dimensions counts as any other."""
    return {0: functools.reduce(torch.promote_types, (a.dtype for a in args[:3]))}


def _of_bincount(x: Any, weights: torch.Tensor | None = None, *rest: Any) -> Types:
    """Counts are int64, sums of weights float32 or float64; the fake ones of 2.11 are int64."""
    if weights is None:
        return {0: torch.int64}
    return {0: torch.float32 if weights.dtype is torch.float32 else torch.float64}


def _of_ldexp(x: torch.Tensor, exponent: torch.Tensor) -> Types:
    """The common type; of integers, the default one."""
    common = torch.result_type(x, exponent)
    kept = common.is_floating_point or common.is_complex
    return {0: common if kept else torch.get_default_dtype()}


aten = torch.ops.aten

OF_ONE_TYPE = {
    aten.mm.default: 2,
    aten.mv.default: 2,
    aten.addmm.default: 3,
    aten.convolution.default: 3,
}
"""By operator: the number of first arguments that kernels take in one data type alone."""

RULES: dict[Any, Callable[..., Types]] = {
    aten.native_batch_norm.default: _saved,
    batch_norm_no_update: _saved,
    batch_norm_with_update: _saved,
    batch_norm_with_update_functional: functools.partial(_of_updating_batch_norm, 4),
    native_batch_norm_legit: _saved,
    native_batch_norm_legit_functional: functools.partial(_of_updating_batch_norm, 3),
    native_batch_norm_legit_no_stats: _saved,
    native_batch_norm_legit_no_training: _saved,
    aten.native_layer_norm.default: _saved,
    aten.native_layer_norm_backward.default: _of_layer_norm_backward,
    aten.native_group_norm.default: _saved,
    aten.native_group_norm_backward.default: _of_group_norm_backward,
    aten.addr.default: _of_addr,
    aten.bincount.default: _of_bincount,
    aten.ldexp.Tensor: _of_ldexp,
    aten.huber_loss.default: functools.partial(_like, 0),
    aten.huber_loss_backward.default: functools.partial(_like, 1),
    aten.mse_loss_backward.default: functools.partial(_like, 1),
    aten.smooth_l1_loss_backward.default: functools.partial(_like, 1),
    aten.normal.Tensor_Tensor: functools.partial(_like, 0),
    aten.soft_margin_loss.default: functools.partial(_like, 0),
    aten.soft_margin_loss_backward.default: functools.partial(_like, 1),
    softmax_backward: _of_softmax_backward,
}
"""By operator: the data types of results, given the arguments; of those left out they are known."""

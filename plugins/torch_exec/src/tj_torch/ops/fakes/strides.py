"""Strides as PyTorch's kernels compute them, where its fake kernels say others.

A dimension of size one may have any stride, and calls on the result look at it all the same:
`torch.nn.functional.group_norm` copies what seems to have another memory format.

Of some operators fake kernels compute something else, as they run the operator's decomposition:
the loss's gradient of a transposed tensor is contiguous, and said to be transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tj_torch.ops.fakes.common_dtypes import cast_layouts
from tj_torch.ops.fakes.indexed_strides import of_index
from tj_torch.ops.fakes.layouts import (
    Layout,
    Strides,
    contiguous,
    filled,
    is_decidable,
    is_long,
    is_size,
    layout_of,
    like,
    of_operands,
    same,
    viewed,
)
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.eager import (
    attention_on_cpu,
    batch_norm_no_update,
    batch_norm_with_update,
    batch_norm_with_update_functional,
    log_softmax_backward,
    native_batch_norm_legit,
    native_batch_norm_legit_functional,
    native_batch_norm_legit_no_stats,
    native_batch_norm_legit_no_training,
    to_copy,
)
from tj_torch.torch_private.runtime import unsafe_view

__all__ = ["corrected", "may_differ"]


def may_differ(func: Any) -> bool:
    """Test for operators whose fake kernel may give other strides than their kernels."""
    known = func in _FIRST or func in _ALWAYS or func in _ALL or func in _SECOND
    return known or torch.Tag.pointwise in getattr(func, "tags", ())


def corrected(func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> Any:
    """Result of ``func(*args, **kwargs)`` on fake tensors, with the strides of kernels."""
    if func in _ALL:
        return tuple(
            None if r is None else _with_strides(r, _ALL[func](func, args, r, **kwargs))
            for r in result
        )
    if func in _SECOND:
        return _with_second(result, _SECOND[func](func, args, result[1]))
    first = result[0] if isinstance(result, tuple) else result
    if first is None or first is NotImplemented:  # a gradient that nobody asked for; a mode's word
        return result
    if func in _ALWAYS:
        strides = _ALWAYS[func](func, args, first, **kwargs)
    elif _is_ambiguous(first) or _are_cast_otherwise(func, args):
        rule: Callable[..., Strides] = _FIRST.get(func, _of_pointwise)
        strides = rule(func, args, first, **kwargs)
    else:
        return result
    first = _with_strides(first, strides)
    return (first, *result[1:]) if isinstance(result, tuple) else first


def _with_second(result: tuple[Any, ...], strides: Strides | None) -> tuple[Any, ...]:
    first, second, *rest = result
    return result if strides is None else (first, _with_strides(second, strides), *rest)


def _with_strides(value: torch.Tensor, strides: Strides) -> torch.Tensor:
    if all(map(same, strides, value.stride())):
        return value
    offset = value.storage_offset()
    return torch.ops.aten.as_strided.default(value, value.shape, strides, offset)  # type: ignore[no-any-return]


def _of_view(func: Any, args: tuple[Any, ...], view: torch.Tensor, /) -> Strides:
    """A dimension of size one goes on from the one after it; a last one has its source's stride.

    What has no elements is contiguous, unless its shape stays the same.
    """
    source, sizes, strides = args[0], view.shape, tuple(view.stride())
    if any(is_size(size, 0) for size in sizes):
        return tuple(source.stride()) if source.shape == sizes else strides
    return viewed(sizes, strides, (1, *source.stride())[-1])


def _of_expand(func: Any, args: tuple[Any, ...], view: torch.Tensor, /, **kwargs: Any) -> Strides:
    """A dimension of size one keeps its stride; a new one goes on from the one after it.

    All are zero where there was no dimension.
    """
    source, sizes, strides = args[0], view.shape, list(view.stride())
    if source.ndim == 0:
        return (0,) * len(sizes)
    new = len(sizes) - source.ndim
    for i in reversed([i for i, size in enumerate(sizes) if is_size(size, 1)]):
        strides[i] = source.stride(i - new) if i >= new else sizes[i + 1] * strides[i + 1]
    return tuple(strides)


def _contiguous(
    func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any
) -> Strides:
    """Contiguous, on the CPU."""
    if result.device.type != "cpu" or any(is_size(size, 0) for size in result.shape):
        return tuple(result.stride())
    return filled(result.shape, range(result.ndim)[::-1])


def _of_new_memory(
    func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any
) -> Strides:
    """Contiguous on the CPU, also without elements."""
    return contiguous(result.shape) if result.device.type == "cpu" else tuple(result.stride())


def _of_angle(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """Contiguous for complex numbers, on the CPU."""
    return _contiguous(func, args, result) if args[0].is_complex() else tuple(result.stride())


def _of_two(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """The strides of an elementwise function of the first two arguments, on the CPU."""
    tensors = [a for a in args[:2] if isinstance(a, torch.Tensor)]
    if not all(map(is_decidable, [*tensors, result])):
        return tuple(result.stride())
    return of_operands(cast_layouts(list(args[:2]), args[:2], result), result.shape)


def _of_ldexp(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """The strides of a product with a power of two, which is contiguous (`aten.pow.Scalar`)."""
    number, exponent = args
    if not all(map(is_decidable, (number, exponent, result))):
        return tuple(result.stride())
    first, second = layout_of(number), layout_of(exponent)
    if not (number.is_floating_point() or number.is_complex()):
        first = Layout(first.shape, like(first))
    return of_operands([first, Layout(second.shape, contiguous(second.shape))], result.shape)


def _of_first(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """The strides of the memory format that the input seems to have, on the CPU."""
    return _of_memory_format(args[0], result)


def _of_roll(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """Strides of the two parts put together, dimension by dimension; with symbols, by the format.

    Without dimensions a vector is rolled.
    """
    x, shifts, along = (*args, kwargs.get("dims"))[:3]
    if not along:
        plain = _is_plain(x)
        contiguous = torch.contiguous_format
        return _in_format(x.shape, contiguous) if plain else _contiguous(func, args, result)
    if any(is_size(size, 0) for size in x.shape):
        return tuple(x.stride())
    if not _is_plain(x) or not all(isinstance(n, int) for n in shifts):
        return _of_first(func, args, result)
    made = _meta(x)
    for shift, dim in zip(shifts, along, strict=True):
        start = -shift % made.shape[dim]
        parts = made.narrow(dim, start, made.shape[dim] - start), made.narrow(dim, 0, start)
        made = torch.cat(parts, dim)
    return made.stride()


def _of_input(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """The same of the input, which comes after the tangent."""
    return _of_memory_format(args[1], result)


def _in_format(shape: Sequence[int], layout: torch.memory_format) -> Strides:
    return torch.empty(shape, device="meta", memory_format=layout).stride()


def _of_memory_format(source: torch.Tensor, result: torch.Tensor) -> Strides:
    """With symbols: where these tell the format of the input without a guard."""
    if _is_plain(source):
        return _in_format(result.shape, private.memory_format(source))
    found = _seems_channels_last(source) if source.device.type == "cpu" else None
    if found is None:
        return tuple(result.stride())
    last = range(result.ndim)[::-1]
    return filled(result.shape, (1, *last[:-2], 0) if found else last)


def _seems_channels_last(tensor: torch.Tensor) -> bool | None:
    """Test for PyTorch's memory format; None for strides with symbols that fill no block.

    Inequalities would be known in some environments of symbols only.
    """
    if tensor.ndim not in (4, 5):
        return False
    last = range(tensor.ndim)[::-1]
    for order in (last, (1, *last[:-2], 0)):
        if all(map(same, tensor.stride(), filled(tensor.shape, order))):
            return order is not last
    return None if _order(tensor) is None else False


def _of_weight(func: Any, args: tuple[Any, ...], result: torch.Tensor | None) -> Strides | None:
    """The strides of a convolution's weight, copied to the memory format of the gradient.

    Where all memory formats are one, that copies nothing, and the gradient keeps the weight's.
    """
    if not _is_ambiguous(result) or not all(map(_is_plain, args[:3])):
        return None
    assert result is not None
    if private.convolution_backend(args) not in ("Slow2d", "SlowTranspose2d"):
        return None
    weight = _meta(args[2]).contiguous(memory_format=private.memory_format(result))
    return _in_format(result.shape, private.memory_format(weight))


def _of_noise(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """The strides of the noise and the tangent in training, else of the input and the tangent."""
    grad, source, noise, lower, upper, training, *_ = args
    draws = training and upper - lower > 1e-6
    return _of_two(func, (noise if draws else source, grad), result)


def _of_loss(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """The strides of `empty_like` for the input, if the loss is not reduced."""
    source = args[1 if func is aten.binary_cross_entropy_backward.default else 0]
    if result.ndim != source.ndim:
        return tuple(result.stride())
    return _of_like(func, (source,), result)


def _of_new(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """Keep the strides of a dense argument, the order of another one's, as `empty_like` does."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return tuple(result.stride())
    return _of_like(func, args, result)


def _of_like(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """The strides of ``empty_like`` for the input."""
    source = args[0]
    return like(layout_of(source)) if is_decidable(source) else tuple(result.stride())


def _of_reduction(
    func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any
) -> Strides:
    """Contiguous, on the CPU, also without elements."""
    return contiguous(result.shape) if result.device.type == "cpu" else tuple(result.stride())


def _of_unique(func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any) -> Strides:
    """Contiguous, if the dimension of what is unique were the first."""
    dim = args[1] if func is aten.unique_dim.default else dict(enumerate(args)).get(3)
    dim = kwargs.get("dim", dim)
    empty = any(is_size(size, 0) for size in result.shape)
    if dim is None or empty or result.device.type != "cpu":
        return tuple(result.stride())
    first = dim % result.ndim
    return filled(result.shape, [*(i for i in range(result.ndim)[::-1] if i != first), first])


def _of_pointwise(
    func: Any, args: tuple[Any, ...], result: torch.Tensor, /, **kwargs: Any
) -> Strides:
    """Where all operands are laid out alike, the result is; else as for tensors without data.

    On the CPU, kernels take a number for a tensor without dimensions, which has a say; on other
    devices, that of fake tensors among them, they take it for no operand.
    """
    given = _operands(func, args)
    known = all(is_decidable(a) for a in args if isinstance(a, torch.Tensor))
    if func in _COMPOSED or func._schema.is_mutable or not known or len(given) not in (1, 2, 3):
        return tuple(result.stride())
    if func is aten.threshold_backward.default:
        given.reverse()  # as its kernel has them
    cast = given[1:] if func is aten.where.self else given
    return of_operands(cast_layouts(given, cast, result), result.shape)


def _are_cast_otherwise(func: Any, args: tuple[Any, ...]) -> bool:
    """Test for operands with gaps that fake kernels cast, and so lay out in another way.

    They cast halves, in which kernels compute, and tensors of several data types.
    """
    if torch.Tag.pointwise not in getattr(func, "tags", ()) or func in _FIRST or func in _FILLS:
        return False
    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.ndim]
    if len(tensors) < 2 or not all(map(_is_plain, tensors)):
        return False
    dtypes = {a.dtype for a in tensors}
    if len(dtypes) == 1 and not dtypes & {torch.float16, torch.bfloat16}:
        return False
    return any(like(layout_of(a)) != tuple(a.stride()) for a in tensors)


def _operands(func: Any, args: tuple[Any, ...]) -> list[Any]:
    """The operands of an elementwise operator, with the numbers that count as operands."""
    takes_number = "scalar" in func._overloadname.lower() and func not in _WITH_NUMBER
    given = zip(args, func._schema.arguments[: len(args)], strict=True)
    return [
        a
        for a, p in given
        if isinstance(a, torch.Tensor)
        or ((takes_number or str(p.type) == "Tensor") and isinstance(a, _NUMBERS))
    ]


_NUMBERS = (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _is_ambiguous(value: Any) -> bool:
    """Test for a dimension whose stride tells nothing about the elements: of size 0 or 1."""
    return isinstance(value, torch.Tensor) and not all(map(is_long, value.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Test for a tensor on the CPU whose sizes and strides are numbers; symbols add no guard."""
    numbers = (*tensor.shape, *tensor.stride())
    return tensor.device.type == "cpu" and all(isinstance(n, int) for n in numbers)


def _order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions of a CPU tensor that fills a block of memory, the innermost first.

    None if symbols do not tell without a guard, or a dimension has size one: its place is free.
    """
    if tensor.device.type != "cpu" or any(is_size(n, 1) or is_size(n, 0) for n in tensor.shape):
        return None
    left, order, expected = set(range(tensor.ndim)), list[int](), 1
    while left:
        following = next((d for d in sorted(left) if same(tensor.stride(d), expected)), None)
        if following is None:
            return None
        left.remove(following)
        order.append(following)
        expected = expected * tensor.shape[following]
    return tuple(order)


aten = torch.ops.aten
_FIRST: dict[Any, Callable[..., Strides]] = {
    torch.ops.aten.view.default: _of_view,
    unsafe_view: _of_view,
    torch.ops.aten.expand.default: _of_expand,
    **dict.fromkeys(
        (
            aten.all.dim,
            aten.all.dims,
            aten.amax.default,
            aten.amin.default,
            aten.any.dim,
            aten.any.dims,
            aten.prod.dim_int,
            aten.sum.dim_IntList,
            aten.var.correction,
        ),
        _of_reduction,
    ),
    **dict.fromkeys(
        (aten.index_add.default, aten.index_copy.default, aten.renorm.default), _contiguous
    ),
    **dict.fromkeys(
        (
            attention_on_cpu,
            to_copy,
            aten.empty_like.default,
            aten.flip.default,
            aten.full_like.default,
            aten.ones_like.default,
            aten.rand_like.default,
            aten.randint_like.default,
            aten.randint_like.low_dtype,
            aten.randn_like.default,
            aten.zeros_like.default,
            aten.clone.default,
            aten.deg2rad.default,
            aten.fill.Scalar,
            aten.fill.Tensor,
            aten.hardtanh.default,
            aten.index_put.default,
            aten.nan_to_num.default,
            aten.rad2deg.default,
            aten.relu6.default,
        ),
        _of_new,
    ),
}
"""By operator: the strides of the first result, given the arguments and that result."""

_WITH_NUMBER = {
    aten.pow.Tensor_Scalar,
    aten.lerp.Scalar,
    aten.float_power.Tensor_Scalar,
    aten.float_power.Scalar,
}
"""Overloads whose kernel has the number itself, and makes no tensor of it."""

_COMPOSED = {
    aten.conj_physical.default,
    aten.frexp.Tensor,
    aten.isfinite.default,
    aten.isinf.default,
    aten.mvlgamma.default,
    aten.positive.default,
}
"""Elementwise operators that may return their argument, or consist of others."""

_FILLS = (aten.masked_fill.Scalar, aten.masked_fill.Tensor)
"""Elementwise operators on copies of their first argument."""

_TWO = (
    aten.elu_backward.default, aten.hardsigmoid_backward.default, aten.softplus_backward.default,
    aten.hardswish_backward.default, aten.hardtanh_backward.default,
    aten.native_dropout_backward.default, aten.div.Tensor_mode, aten.floor_divide.default,
    aten.logit_backward.default, aten.heaviside.default, aten.logaddexp.default,
    aten.logaddexp2.default, aten.logical_and.default, aten.logical_or.default,
    aten.logical_xor.default, aten.silu_backward.default, aten.sigmoid_backward.default,
    aten.tanh_backward.default,
)  # fmt: skip

_TWO_AS_FLOATS = (aten.copysign.Tensor, aten.special_xlog1py.default, aten.xlogy.Tensor)

_ALWAYS: dict[Any, Callable[..., Strides]] = {
    aten.index.Tensor: of_index,
    aten.grid_sampler_2d.default: _contiguous,
    aten.tril.default: _contiguous,
    aten.triu.default: _contiguous,
    aten.native_batch_norm.default: _of_first,
    aten.native_group_norm.default: _of_first,
    batch_norm_with_update: _of_first,
    native_batch_norm_legit: _of_first,
    native_batch_norm_legit_no_stats: _of_first,
    native_batch_norm_legit_functional: _of_first,
    native_batch_norm_legit_no_training: _of_first,
    batch_norm_with_update_functional: _of_first,
    batch_norm_no_update: _of_first,
    aten.batch_norm_backward.default: _of_input,
    aten.native_batch_norm_backward.default: _of_input,
    aten.reflection_pad2d.default: _of_first,
    aten.channel_shuffle.default: _of_first,
    aten.max_unpool2d.default: _of_first,
    aten.replication_pad2d.default: _of_first,
    aten.reflection_pad3d.default: _of_first,
    aten.replication_pad3d.default: _of_first,
    aten.reflection_pad2d_backward.default: _of_input,
    aten.reflection_pad3d_backward.default: _of_input,
    aten.replication_pad2d_backward.default: _of_input,
    aten.replication_pad3d_backward.default: _of_input,
    log_softmax_backward: _contiguous,
    aten.rrelu_with_noise.default: _contiguous,
    aten.rrelu_with_noise_backward.default: _of_noise,
    aten.binary_cross_entropy.default: _of_loss,
    aten.binary_cross_entropy_backward.default: _of_loss,
    aten.huber_loss_backward.default: _contiguous,
    **dict.fromkeys((aten.isin.Tensor_Scalar, aten.isin.Tensor_Tensor), _contiguous),
    aten.mse_loss_backward.default: _contiguous,
    aten.smooth_l1_loss_backward.default: _contiguous,
    aten.native_layer_norm.default: _of_new_memory,
    aten.normal.Tensor_Tensor: _contiguous,
    **dict.fromkeys(_TWO, _of_two),
    **dict.fromkeys(_TWO_AS_FLOATS, _of_pointwise),
    aten.ldexp.Tensor: _of_ldexp,
    aten.angle.default: _of_angle,
    aten.pow.Scalar: _contiguous,
    aten.roll.default: _of_roll,
    aten.unique_dim.default: _of_unique,
    aten.unique_consecutive.default: _of_unique,
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _of_new),
}
"""As `_FIRST`, for operators whose results may differ in all dimensions."""

_SECOND = {aten.convolution_backward.default: _of_weight}
"""The same of the second result, or None where fake kernels are right."""

_ALL: dict[Any, Callable[..., Strides]] = {
    **dict.fromkeys(
        (aten.log_sigmoid_forward.default, aten.native_layer_norm_backward.default), _contiguous
    ),
    **dict.fromkeys((aten.sort.default, aten.sort.stable), _of_like),
}
"""As `_ALWAYS`, for all results, those that exist."""

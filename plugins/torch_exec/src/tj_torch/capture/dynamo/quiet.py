"""Operators that raise for no data: all their errors depend on metadata, and show at capture.

Any other operator counts as one that may raise at run time: for an index out of bounds, a singular
matrix, a probability above one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tj_torch.ops.facts.schema_effects import bound_arguments
from tj_torch.torch_private.ops import depend_on_data
from tj_torch.torch_private.runtime import OpOverload, pytree

__all__ = ["may_raise_on_data", "writes_elements_twice"]

_SOUND = (torch.ops.aten.slice.Tensor, torch.ops.aten.expand.default)
"""Views of what there is between any two ends, and one whose sizes PyTorch asserts itself."""

_DIVIDING = frozenset({"div", "divide", "floor_divide", "remainder", "fmod", "pow", "mvlgamma"})
"""Pointwise operators that raise for some integers."""

_DRAWING = frozenset({"bernoulli", "normal", "poisson", "binomial", "multinomial"})
"""Operators that raise for some parameters of a distribution, given as tensors."""

_QUIET = frozenset(
    [
        "_local_scalar_dense",
        "item",
        "lift",
        "lift_fresh",
        "copy_",
        "copy",
        "fill",
        "fill_",
        "zero",
        "zero_",
        "clone",
        "contiguous",
        "_to_copy",
        "to",
        "_conj_physical",
        "resolve_conj",
        "resolve_neg",
        "complex",
        "polar",
        "real",
        "imag",
        "isclose",
        "mm",
        "bmm",
        "addmm",
        "addbmm",
        "baddbmm",
        "addmv",
        "addr",
        "mv",
        "dot",
        "vdot",
        "linear",
        "matmul",
        "outer",
        "einsum",
        "bilinear",
        "convolution",
        "convolution_backward",
        "convolution_overrideable",
        "mkldnn_convolution",
        "_convolution",
        "native_layer_norm",
        "native_layer_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "_native_batch_norm_legit",
        "rms_norm",
        "_native_batch_norm_legit_no_training",
        "_batch_norm_with_update",
        "_batch_norm_no_update",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm_backward",
        "_fused_rms_norm",
        "_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
        "softmax",
        "log_softmax",
        "logsumexp",
        "logcumsumexp",
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "_cummax_helper",
        "_cummin_helper",
        "trapezoid",
        "sum",
        "nansum",
        "mean",
        "nanmean",
        "prod",
        "amax",
        "amin",
        "aminmax",
        "max",
        "min",
        "argmax",
        "argmin",
        "all",
        "any",
        "std",
        "std_mean",
        "var",
        "var_mean",
        "norm",
        "linalg_vector_norm",
        "linalg_matrix_norm",
        "count_nonzero",
        "median",
        "nanmedian",
        "sort",
        "argsort",
        "topk",
        "kthvalue",
        "msort",
        "mode",
        "searchsorted",
        "bucketize",
        "unique_consecutive",
        "nonzero",
        "nonzero_static",
        "masked_select",
        "_unique",
        "_unique2",
        "unique_dim",
        "isin",
        "cat",
        "stack",
        "hstack",
        "vstack",
        "concat",
        "flip",
        "roll",
        "rot90",
        "tril",
        "triu",
        "trace",
        "diag",
        "diag_embed",
        "repeat",
        "tile",
        "expand_copy",
        "constant_pad_nd",
        "reflection_pad1d",
        "reflection_pad2d",
        "reflection_pad3d",
        "replication_pad1d",
        "replication_pad2d",
        "replication_pad3d",
        "im2col",
        "col2im",
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "slice_scatter",
        "select_scatter",
        "diagonal_scatter",
        "as_strided_scatter",
        "masked_fill",
        "where",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "adaptive_avg_pool1d",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
        "avg_pool2d_backward",
        "max_pool2d_with_indices_backward",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "upsample_trilinear3d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
        "grid_sampler_2d",
        "grid_sampler_3d",
        "affine_grid_generator",
        "glu",
        "prelu",
        "_prelu_kernel",
        "rrelu_with_noise",
        "hardswish",
        "native_dropout",
        "dropout",
        "mse_loss",
        "smooth_l1_loss",
        "huber_loss",
        "soft_margin_loss",
        "_cdist_forward",
        "cross",
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_fused_attention_overrideable",
        "_flash_attention_forward",
        "uniform",
        "uniform_",
        "random",
        "random_",
        "exponential",
        "exponential_",
        "normal_",
        "bernoulli_",
        "rand_like",
        "randn_like",
        "randint_like",
        "empty_like",
        "full_like",
        "zeros_like",
        "ones_like",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_zeros",
        "new_ones",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "_fft_r2c",
        "_fft_c2c",
        "_fft_c2r",
        "lerp",
        "addcmul",
        "addcdiv",
    ]
)
"""Names of overload packets of ``aten``, beside pointwise operators and views."""


def may_raise_on_data(operator: Any, arguments: Iterable[Any]) -> bool:
    """Test if a call of ``operator`` that succeeds on fake tensors may raise for some data."""
    if not isinstance(operator, OpOverload):
        return False  # a higher-order operation: the calls in its graphs are checked one by one
    arguments = list(arguments)
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if not tensors or _views(operator):
        # A view of sizes or at an index that depends on data may not be one of the tensor.
        given = [*arguments, *_unasserted(operator, arguments)]
        return operator not in _SOUND and any(map(_depends_on_data, given))
    if operator.namespace in ("prim", "prims"):
        return False
    if operator.namespace != "aten":
        return True
    name = operator.overloadpacket.__name__
    if name.rstrip("_") in _DIVIDING:
        return not any(t.is_floating_point() or t.is_complex() for t in tensors)
    if name == "index":
        return not all(t.dtype == torch.bool for t in tensors[1:])
    if name in _DRAWING or (name.rstrip("_") in _DRAWING and len(tensors) > 1):
        return True
    return not (
        torch.Tag.pointwise in operator.tags or name in _QUIET or name.rstrip("_") in _QUIET
    )


def _unasserted(operator: OpOverload, arguments: Sequence[Any]) -> Sequence[Any]:
    """The sizes of the first argument that a view needs, and PyTorch asserts nothing of.

    ``meta_select`` in torch/_subclasses/fake_impls.py guards, and lets an unknown size pass.
    """
    if operator is torch.ops.aten.select.int:
        x, dim, _ = arguments
        return [x.shape[dim]] if x.dim() else []
    if operator is torch.ops.aten.as_strided.default:
        return [*arguments[0].shape]
    return ()


def writes_elements_twice(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Test if ``operator`` writes to an expanded tensor, which kernels refuse for real ones."""
    if not isinstance(operator, OpOverload) or not operator._schema.is_mutable:
        return False
    given = bound_arguments(operator._schema, args, kwargs)
    written = [value for a, value in given if a.alias_info and a.alias_info.is_write]
    return any(map(_is_expanded, pytree.tree_leaves(written)))


def _is_expanded(value: Any) -> bool:
    """Test for a tensor whose memory has one element at several indices, as kernels do."""
    return isinstance(value, torch.Tensor) and any(
        isinstance(stride, int) and stride == 0 and not (isinstance(size, int) and size < 2)
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )


def _depends_on_data(argument: Any) -> bool:
    return isinstance(argument, torch.SymInt) and depend_on_data([argument])


def _views(operator: OpOverload) -> bool:
    """Test for an operator that only returns views."""
    returned = [r.alias_info for r in operator._schema.returns]
    return bool(returned) and all(a is not None and not a.is_write for a in returned)

"""Calls that are worth a region of their own.

A region of one call fuses nothing. Where PyTorch's kernel is slow, it is faster all the same: a
tanh takes a tenth of the time, the average pool of an image an eighth. The figures are nanoseconds
that one element takes less than in eager, measured with a million elements, one thread and AVX-512
(AMD EPYC). They decide about speed only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from tj_core.extend import BoundSymbol, Dim, SymDim, TensorProxy, is_contiguous, makes_views

from tj_inductor.operators import operator_of

__all__ = ["pays_alone"]

ENOUGH = 50_000.0
"""Nanoseconds that a call saves at least each time: it is compiled for about a second."""

SAVED: Mapping[str, tuple[float, float]] = {
    "tanh": (2.4, 1.5), "sigmoid": (0.15, 0.15), "gelu": (0.2, 0), "gelu, tanh": (1.6, 1.6),
    "silu": (0.14, 0.13), "mish": (2.3, 2.4), "softplus": (0.4, 0.3), "glu": (0.12, 0),
    "exp": (0.7, 0.13), "log": (0.5, 0), "log2": (0.45, 0), "erf": (1.1, 0.33), "logit": (0.6, 0),
    "sin": (1.4, 0.45), "cos": (1.2, 0.45), "tan": (0.8, 1.1), "atan": (1.6, 0), "asin": (0.8, 0),
    "sigmoid_backward": (0.13, 0), "gelu_backward": (0.3, 0.3), "gelu_backward, tanh": (1.5, 1.5),
    "silu_backward": (0.15, 0.14), "mish_backward": (2.3, 2.4), "softplus_backward": (0.2, 0.2),
    "_softmax": (0.1, 0.1), "_log_softmax": (0.3, 0.2), "_log_softmax_backward_data": (0.15, 0.2),
    "native_batch_norm": (0.07, 0), "native_batch_norm_backward": (0.65, 0.2),
    "mse_loss": (0.8, 0.65), "mse_loss_backward": (0.12, 0.5), "smooth_l1_loss": (0.2, 0.5),
    "huber_loss": (0.2, 1.3), "binary_cross_entropy_with_logits": (1.1, 1.5),
    "var": (6.0, 6.0), "var_mean": (6.0, 6.0), "std": (0.6, 5.0), "logsumexp": (1.3, 0.8),
    "linalg_vector_norm": (0.05, 0), "where": (3.0, 0), "masked_fill": (4.0, 0),
    "fmod": (0.5, 0), "remainder": (0.5, 0), "isnan": (0.5, 0),
}  # fmt: skip
"""Nanoseconds by operator: of float32, and of bfloat16 and float16."""

SAVED_OF_IMAGES: Mapping[str, tuple[float, float]] = {
    "max_pool2d_with_indices": (3.4, 5.0), "avg_pool2d": (1.8, 1.6),
    "avg_pool2d_backward": (1.2, 2.0), "_adaptive_avg_pool2d": (0.5, 0.7),
    "upsample_nearest2d": (6.0, 5.0), "upsample_nearest2d_backward": (1.1, 0.7),
    "native_batch_norm": (1.7, 0.1),
}  # fmt: skip
"""The same where all tensors are contiguous: in channels_last, PyTorch's kernels are fast."""

ACROSS = 1.5
"""The same of elementwise operators and copies that read a tensor across its rows."""

COPIES = ("clone", "_to_copy")
WIDTHS = {"float32": 0, "bfloat16": 1, "float16": 1}


def pays_alone(call: BoundSymbol) -> bool:
    """Decide if ``call`` saves `ENOUGH` time where it is a region of its own."""
    tensors = [p for p in (*call.flat_args, *call.flat_outs) if isinstance(p, TensorProxy)]
    if makes_views(call) or any(p.device.type != "cpu" for p in tensors):
        return False
    elements = max(math.prod(map(_hint, p.shape)) for p in tensors)
    return elements * _saved(call, tensors) >= ENOUGH


def _saved(call: BoundSymbol, tensors: Sequence[TensorProxy]) -> float:
    """Nanoseconds that an element of ``call``'s largest tensor takes less than in eager."""
    name = call.symbol.path.partition(".")[0]
    types = [p.dtype.name for p in tensors if p.dtype.kind != "bool"]
    column = WIDTHS.get(types[0]) if types else None
    if column is None:
        return 0.0
    if _reads_across(call, name, tensors):
        return ACROSS
    if dict(call.kwargs).get("approximate") == "tanh":
        name += ", tanh"
    saved = SAVED.get(name, (0.0, 0.0))[column]
    if name in SAVED_OF_IMAGES and all(map(is_contiguous, tensors)):
        saved = SAVED_OF_IMAGES[name][column]
    return saved


def _reads_across(call: BoundSymbol, name: str, tensors: Sequence[TensorProxy]) -> bool:
    """Check for neighbours in the result that do not stand side by side in an argument."""
    operator = operator_of(call.symbol)
    if name not in COPIES and (operator is None or torch.Tag.pointwise not in operator.tags):
        return False
    out = next(p for p in call.flat_outs if isinstance(p, TensorProxy))
    inner = _innermost(out)
    return any(
        p.shape == out.shape and inner is not None and _innermost(p) not in (None, inner)
        for p in tensors
    )


def _innermost(p: TensorProxy) -> int | None:
    """The dimension along which elements of ``p`` stand side by side; None without one."""
    steps = zip(p.shape, p.strides, strict=True)
    return next((d for d, (n, step) in enumerate(steps) if step == 1 and n != 1), None)


def _hint(size: Dim) -> int:
    return (size.hint or 0) if isinstance(size, SymDim) else size

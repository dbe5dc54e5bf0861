"""Names of layers and products, and reasons why oneDNN does not run one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import TensorProxy, contiguous_strides, formal_index, requires_grad

from tj_onednn.names import PRODUCTS, lost
from tj_onednn.operands import factors, tensors_of
from tj_onednn.operators import lies_by_pixels

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol, Trace

__all__ = [
    "CONVOLUTION",
    "LINEAR",
    "NO_PRODUCT",
    "RECURRENT",
    "disabled",
    "no_images",
    "not_pointwise",
    "pixel_factors",
    "product_in",
    "takes_gradients",
    "weights_of",
]

LINEAR = "torch.nn.functional.linear"
CONVOLUTION = "torch.conv2d"
RECURRENT = "aten.mkldnn_rnn_layer.default"
NO_PRODUCT = "it is not one product of matrices"
SINGLE = ("aten.mm.default", "aten.addmm.default")


def product_in(call: BoundSymbol) -> BoundSymbol | None:
    """The matrix product of a linear layer; None if its body does not have exactly one."""
    inner = call.body.calls if call.body is not None else ()
    products = [c for c in inner if c.symbol.qualname in SINGLE]
    return products[0] if len(products) == 1 else None


def disabled() -> str | None:
    """Reason why all products are PyTorch's, such as the current settings, or None."""
    if not torch.backends.mkldnn.enabled:  # a guard of every program with a product
        return "torch.backends.mkldnn.enabled is false"
    # PyTorch's kernel then rounds factors to bfloat16 on some processors; the user has asked for
    # that.
    if torch.get_float32_matmul_precision() != "highest":
        return "set_float32_matmul_precision has chosen PyTorch's kernels for it"
    return lost(PRODUCTS)


def weights_of(call: BoundSymbol) -> Iterator[str]:
    """Names of the weights of ``call``, if it is a layer; of recurrent layers, also in its body."""
    name = call.symbol.qualname
    places = slice(1, 3) if name == RECURRENT else slice(1, 2)
    if name in (LINEAR, CONVOLUTION, RECURRENT):
        yield from (p.name for p in call.args[places] if isinstance(p, TensorProxy))
    elif call.body is not None:
        formal = {p.name: call.flat_args[formal_index(p.name)] for p in call.body.inputs}
        for inner in call.body.calls:
            if inner.symbol.qualname == RECURRENT:
                yield from (formal[found].name for found in weights_of(inner) if found in formal)


def no_images(call: BoundSymbol) -> str | None:
    """Reason why a convolution is not supported, or None."""
    given = (*call.args, *(value for _, value in call.kwargs))
    if any(isinstance(value, str) for value in given):
        return "its padding is computed from other arguments"
    return None if tensors_of(call.flat_args)[0].ndim == 4 else "it is no batch of images"


def not_pointwise(call: BoundSymbol) -> str | None:
    """Reason why ``aten.convolution``, or its backward, is no product of pixels; None if it is."""
    backward = "backward" in call.symbol.name
    given: Any = call.args[4:10] if backward else call.args[3:9]
    stride, padding, _, transposed, _, groups = given
    *images, weight = _images_and_weight(call)
    plain = not (transposed or any(padding)) and groups == 1 and {*stride} == {1}
    if not plain or tuple(weight.shape[2:]) != (1, 1):
        return "it is no product of single pixels"
    if not all(lies_by_pixels(p.shape, p.strides) or _is_contiguous(p) for p in images):
        return "its images are neither contiguous nor in channels_last"
    return None


def pixel_factors(call: BoundSymbol) -> int:
    """Number of multiplications of a convolution by single pixels, or of each of its gradients."""
    *_, images, weight = _images_and_weight(call)
    return factors(images, weight.replace(shape=weight.shape[:1]))


def _images_and_weight(call: BoundSymbol) -> list[TensorProxy]:
    """Tensors of a convolution, or of its backward, but for the bias; the weight is last."""
    return tensors_of(call.args[: 3 if "backward" in call.symbol.name else 2])


def _is_contiguous(p: TensorProxy) -> bool:
    return p.strides == contiguous_strides(p.shape)


def takes_gradients(trace: Trace) -> bool:
    """Decide if a value that ``trace`` computes requires a gradient."""
    return any(map(_takes_gradients, trace.calls))


def _takes_gradients(call: BoundSymbol) -> bool:
    # Where gradients are off, views of parameters require them all the same.
    views = {alias.output for alias in call.effects.aliases if alias.kind == "arg"}
    return any(requires_grad(p) for i, p in enumerate(call.flat_outs) if i not in views)

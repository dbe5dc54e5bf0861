"""Operators of layers in int8, made of PyTorch's own, in the library ``tj_int8``.

Their bodies are calls of ATen, so that a program with them can be read, checked, and fused by any
executor.
"""

from __future__ import annotations

import torch

from tj_onednn import adapter
from tj_onednn.adapter import INT8_WEIGHT_PRODUCT

__all__ = [
    "DYNAMIC",
    "QUANTISE",
    "WEIGHTS",
    "dynamic",
    "quantise",
    "sums_are_exact",
    "weights_only",
]

Tensor = torch.Tensor

LARGEST = 127
"""Largest integer that stands for a number: the range is symmetric, without -128."""

LEAST = torch.finfo(torch.float32).tiny
"""Least scale: that of a row of zeros, which stay zeros, or of numbers too small for float32."""


def quantise(weight: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
    """Round ``weight`` ``[n, k]``, if ``transposed`` ``[k, n]``, to int8 ``[n, k]`` and scales
    ``[n]``.

    A row with an infinity or NaN gets the scale infinity or NaN, by which all its results are NaN.
    """
    rows = (weight.t() if transposed else weight).float()
    scales = _scales(rows)
    narrow = (rows / scales).round().to(torch.int8, memory_format=torch.contiguous_format)
    return narrow, scales.reshape(-1)


def dynamic(x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """Multiply ``x`` ``[..., k]``, rounded to int8 with a scale for each row, by ``weight``.

    The sums are exact; the result ``[..., n]`` has the data type of ``x``. Without ``scales``, the
    integers themselves are the weight.
    """
    rows = x.reshape(-1, weight.shape[1]).float()
    each = _scales(rows)
    sums = adapter.INT8_PRODUCT((rows / each).round().to(torch.int8), weight.t())
    return _scaled(x, sums * each, scales, bias)


def weights_only(
    x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """Multiply ``x`` ``[..., k]``, rounded to bfloat16, by ``weight``."""
    # PyTorch's kernel for float32 takes seven times as long as float32 weights do.
    rows = x.reshape(-1, weight.shape[1]).to(torch.bfloat16).contiguous()
    # It rounds scales to bfloat16, a relative error of 2e-3 of all that a row gives.
    sums = INT8_WEIGHT_PRODUCT(rows, weight, rows.new_ones(weight.shape[0]))
    return _scaled(x, sums.float(), scales, bias)


def sums_are_exact() -> bool:
    """Try whether products of int8 are summed in int32 on this processor.

    Without instructions for int8 (VNNI), oneDNN adds pairs in int16, which saturates.
    """
    x = torch.full((3, 64), LARGEST, dtype=torch.int8)
    found = adapter.INT8_PRODUCT(x, torch.full((64, 5), LARGEST, dtype=torch.int8))
    return bool((found == LARGEST**2 * 64).all())


def _scales(rows: Tensor) -> Tensor:
    """Compute the scale of each row, float32 ``[rows, 1]``."""
    # Not `torch.linalg.vector_norm`, which refuses a matrix without rows.
    largest = rows.abs().amax(-1, keepdim=True)
    return (largest / LARGEST).clamp_min(LEAST)


def _scaled(x: Tensor, sums: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale ``sums`` ``[rows, n]`` to the result for ``x``."""
    if scales is None:
        found = sums if bias is None else sums + bias.float()
    else:
        found = sums * scales if bias is None else torch.addcmul(bias.float(), sums, scales)
    return found.to(x.dtype).reshape(*x.shape[:-1], sums.shape[1])


LIBRARY = torch.library.Library("tj_int8", "DEF")
PRODUCT = "(Tensor x, Tensor weight, Tensor? scales, Tensor? bias=None) -> Tensor"
SCHEMAS = {
    "quantise": (quantise, "(Tensor weight, bool transposed=False) -> (Tensor, Tensor)"),
    "dynamic": (dynamic, PRODUCT),
    "weights_only": (weights_only, PRODUCT),
}
for _name, (_function, _schema) in SCHEMAS.items():
    LIBRARY.define(_name + _schema)
    LIBRARY.impl(_name, _function, "CompositeImplicitAutograd")

QUANTISE, DYNAMIC, WEIGHTS = (f"torch.ops.tj_int8.{name}.default" for name in SCHEMAS)
"""Symbols of the operators' calls."""

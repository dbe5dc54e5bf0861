"""Decompositions that move elements in runs or by a mask, where Inductor's are slow or wrong.

Inductor writes `roll` as an index with a remainder, which it checks for each element, and
`upsample_nearest` as a product of floats that is truncated: one element at a time, in up to four
times eager's time for halves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tj_inductor.arithmetic import Formula

__all__ = ["MOVES", "is_window"]

aten = torch.ops.aten


def roll(x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """``x``, rolled along each of ``dims``: two parts that change places.

    Symbolic sizes and shifts are left to Inductor's formula, ``NotImplemented``.
    """
    numbers = [*x.shape, *shifts]
    if not dims or x.dim() == 0 or any(not isinstance(n, int) for n in numbers) or 0 in x.shape:
        return NotImplemented
    made = x
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = -shift % size
        if start:
            parts = (made.narrow(dim, start, size - start), made.narrow(dim, 0, start))
            made = torch.cat(parts, dim)
    return x.clone() if made is x else made


def nearest(x: torch.Tensor, output_size: Sequence[Any], *scales: float | None) -> Any:
    """Nearest interpolation of ``x`` ``[n, c, *sizes]``, with eager's rule for scales.

    PyTorch's kernels ignore the scale of a dimension whose size stays or doubles, where they are
    those for images (``nearest_idx`` in ATen/native/UpSample.h); Inductor's formula does not.
    """
    sizes = x.shape[2:]
    # Where sizes alone are given, some callers leave out the scales.
    given = [*scales, *[None] * (len(sizes) - len(scales))]
    read = given
    if _ignores_scales(x):
        pairs = zip(given, output_size, sizes, strict=True)
        read = [None if s is not None and out in (n, 2 * n) else s for s, out, n in pairs]
    made = _repeated(x, output_size, read)
    if made is not NotImplemented or all(s is t for s, t in zip(read, given, strict=True)):
        return made
    return UPSAMPLES[len(sizes) - 1](x, output_size, *read)


def _ignores_scales(x: torch.Tensor) -> bool:
    """Check for images, and for volumes in channels_last, which have the kernel for images."""
    if x.device.type != "cpu" or x.dim() != 5:
        return x.device.type == "cpu" and x.dim() == 4
    return x.shape[1] > 3 and x.is_contiguous(memory_format=torch.channels_last_3d)


def _repeated(x: torch.Tensor, output_size: Sequence[Any], scales: Sequence[float | None]) -> Any:
    """``x`` with each element repeated along all sizes.

    Eager multiplies a place by the quotient of the sizes in float32, which is exact for powers of
    two; for other quotients, scales and layouts: ``NotImplemented``.
    """
    sizes = x.shape[2:]
    if not x.is_contiguous() or any(not isinstance(n, int) for n in (*x.shape, *output_size)):
        return NotImplemented
    if 0 in x.shape or any(out % size for out, size in zip(output_size, sizes, strict=True)):
        return NotImplemented
    factors = [out // size for out, size in zip(output_size, sizes, strict=True)]
    if any(factor & (factor - 1) for factor in factors):
        return NotImplemented
    if any(s is not None and s != factor for s, factor in zip(scales, factors, strict=True)):
        return NotImplemented
    shape = [*x.shape[:2], *(n for size in sizes for n in (size, 1))]
    wide = [*x.shape[:2], *(n for pair in zip(sizes, factors, strict=True) for n in pair)]
    return x.view(shape).expand(wide).reshape([*x.shape[:2], *output_size])


def is_window(size: int, out: int, scale: float | None) -> bool:
    """Check that eager takes element ``o * size // out`` of ``size`` for each of ``out``.

    So does Inductor's gradient; eager computes the place in float32, by ``scale`` if there is one.
    """
    if out in (size, 2 * size):
        return True
    factor = _single(1 / scale if scale else size / out)
    places = (min(int(_single(o * factor)), size - 1) for o in range(out))
    return all(place == o * size // out for o, place in enumerate(places))


def _single(x: float) -> float:
    """``x``, rounded to float32."""
    return float(struct.unpack("f", struct.pack("f", x))[0])


def masked(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> Any:
    """``x[mask] = value``, by `where`; other indices: ``NotImplemented``.

    Inductor gives the memory of ``x`` to the result, though a scatter before it still writes to
    what it had (`index_put_as_masked_fill` in torch/_inductor/lowering.py of 2.13 and 2.14): the
    scatter came after the mask.
    """
    mask = indices[0]
    one = all(isinstance(n, int) and n == 1 for n in values.shape)
    if len(indices) != 1 or mask is None or mask.dtype != torch.bool or not one:
        return NotImplemented
    mask = mask.reshape([*mask.shape, *(1 for _ in range(x.dim() - mask.dim()))])
    value = values.reshape(()).to(x.device)
    return torch.where(mask, x + value if accumulate else value, x)


UPSAMPLES = (
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
)

MOVES: dict[Any, Formula] = {
    aten.index_put.default: masked,
    aten.roll.default: roll,
    **dict.fromkeys(UPSAMPLES, nearest),
}

"""Tensors at run time: what kernels do to them and return is held against traces by this."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from tj_core.extend import Context, Proxy, RuntimeValues, TensorProxy

from tj_torch.ops import constants
from tj_torch.ops.convert import device_to_torch, dtype_to_torch, tensor_proxy
from tj_torch.runtime.subclasses import is_wrapper, read_tensors
from tj_torch.torch_private.ops import set_conj, set_neg, storage_id

__all__ = ["VALUES"]

ROW = 8192
"""Up to so many words of 8 bytes are compared one by one; more of them as the sums of rows."""


_SINGLE, _DOUBLE = (1.3e-6, 1e-5), (1e-7, 1e-7)
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: _SINGLE,
    torch.float64: _DOUBLE,
    torch.complex64: _SINGLE,
    torch.complex128: _DOUBLE,
}
"""Relative and absolute tolerances by data type; other types are compared exactly."""


def observe(value: object) -> TensorProxy | None:
    """The metadata of a tensor."""
    return tensor_proxy("result", value) if isinstance(value, torch.Tensor) else None


def memory(tensor: torch.Tensor) -> Hashable | None:
    """The storage of a tensor; None for one without elements."""
    return storage_id(tensor) if tensor.numel() else None


def mark(tensor: torch.Tensor) -> object:
    """The version of a tensor and what is in its memory, by sums where that is much."""
    version = None if tensor.is_inference() else tensor._version
    return version, _content(tensor)


def _content(tensor: torch.Tensor) -> object:
    if is_wrapper(tensor):
        return [*map(_content, read_tensors(tensor))]
    if not _has_bytes(tensor):
        return None
    start, memory = tensor.storage_offset() * tensor.itemsize, _bytes(tensor)
    with torch.no_grad():
        words, rest = memory[: len(memory) - len(memory) % 8], memory[len(memory) // 8 * 8 :]
        # Words begin where the tensor does, which need not be at a multiple of their size.
        words = words.view(torch.int64) if start % 8 == 0 else words.clone().view(torch.int64)
        rows = words[: len(words) - len(words) % ROW].view(-1, ROW).sum(1)
        return [*rows.tolist(), *words[len(rows) * ROW :].tolist(), *rest.tolist()]


def _has_bytes(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() > 0


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory between the first and the last element of a tensor, which is not empty."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start, size = tensor.storage_offset() * tensor.itemsize, (last + 1) * tensor.itemsize
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage(), start, (size,), (1,))


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor with its metadata, and with all memory that an absolute offset reaches."""
    if is_wrapper(tensor) or not _has_bytes(tensor):
        return tensor.detach().clone()
    with torch.no_grad():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        memory = tensor.untyped_storage().clone()
        made.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        set_conj(made)
    if tensor.is_neg():
        set_neg(made)
    return made


def differs(found: torch.Tensor, expected: torch.Tensor, steps: int = 1) -> str | None:
    """How many values of two tensors are not close, and by how much at most; None if all are.

    The tolerances are those of `torch.testing.assert_close`, the relative one of the largest value
    too: sums in another order differ by so much, also where little is left of their terms. They
    grow with ``steps``, the number of operations, one after the other, that may have rounded.
    """
    if is_wrapper(expected):
        pairs = zip(read_tensors(found), read_tensors(expected), strict=True)
        return next((what for pair in pairs if (what := differs(*pair, steps)) is not None), None)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = (t.detach().to_dense().to(wide) for t in (found, expected))
    distance, size = (a - b).abs(), b.abs()
    if expected.is_complex() or expected.is_floating_point():
        relative, absolute = (steps * t for t in TOLERANCES.get(expected.dtype, (0, 0)))
        largest = float(size.nan_to_num(0, 0, 0).max()) if size.numel() else 0
        close = distance <= max(absolute, relative * largest) + relative * size
        equal = (a == b) | (a.isnan() & b.isnan()) | close
    else:
        equal = found == expected
    if equal.all():
        return None
    count = int(equal.logical_not().sum())
    return f"has other values: {count} of {equal.numel()}, by up to {float(distance.max()):.2g}"


def plain(value: Any) -> Any:
    """A value as kernels get it: a tensor that requires no gradient, or what is no tensor."""
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def example(p: Proxy) -> torch.Tensor | None:
    """A tensor with the metadata of ``p``; floating-point values are normal, integers 0 or 1."""
    if not isinstance(p, TensorProxy) or p.subclass is not None or p.layout != "strided":
        return None
    shape, strides = ([int(str(n)) for n in dims] for dims in (p.shape, p.strides))
    spans = ((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    size = sum(spans) + 1 if 0 not in shape else 0
    generator = torch.Generator().manual_seed(0)
    dtype, device = dtype_to_torch(p.dtype), device_to_torch(p.device)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        memory = torch.randn(size, generator=generator, dtype=wide).to(dtype)
    else:
        memory = torch.randint(2, (size,), generator=generator).to(dtype)
    return memory.to(device).as_strided(shape, strides)


def laid_out(value: Any, strides: Sequence[int]) -> Any:
    """The tensor ``value`` with ``strides``: itself, or a copy."""
    if value.stride() == tuple(strides):
        return value
    made = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return made.copy_(value)


def records(context: Context) -> bool:
    """Tell whether autograd records calls in ``context``."""
    return not context.get("inference") and context.get("grad") is not False


VALUES = RuntimeValues(
    observe,
    memory,
    mark,
    copy,
    differs,
    plain,
    example,
    laid_out,
    constants.text,
    constants.of_text,
    records,
)
"""What PyTorch's dialect knows of values at run time."""

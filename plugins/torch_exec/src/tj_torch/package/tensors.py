"""Tensors in the form of safetensors: a header in JSON, then bytes. Nothing is unpickled.

The header may have an entry ``__metadata__``, of strings; strides of tensors that are not
contiguous stand there. Other programs read such a file with the library ``safetensors``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from tj_core.extend import PackageError

__all__ = ["packed", "unpacked"]

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


def packed(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The file with ``tensors``, from any device.

    :raises PackageError: for a data type without a name in this form, or a layout without strides.
    """
    header: dict[str, object] = {}
    strides: dict[str, str] = {}
    parts: list[bytes] = []
    place = 0
    # The largest elements first: then each tensor is aligned.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        if tensor.layout is not torch.strided or tensor.dtype not in _NAMES:
            raise PackageError(f"{name} is {tensor.dtype} ({tensor.layout}), which has no place")
        if _overlaps(tensor):
            raise PackageError(f"elements of {name} share memory", hint="contiguous() copies it")
        if not tensor.is_contiguous():
            strides[name] = json.dumps(tensor.stride())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + len(data)],
        }
        parts.append(data)
        place += len(data)
    text = json.dumps(({"__metadata__": strides} if strides else {}) | header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _overlaps(tensor: torch.Tensor) -> bool:
    """Test for an expanded tensor, or another with more elements than memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 0 < 1 + sum((n - 1) * s for n, s in pairs) < tensor.numel()


def unpacked(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of the file ``data``, on the CPU, each in memory of its own."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    strides = header.pop("__metadata__", {})
    view = memoryview(data)[start:]
    return {
        name: _tensor(view, facts, json.loads(strides[name]) if name in strides else None)
        for name, facts in header.items()
    }


def _tensor(view: memoryview, facts: Mapping[str, Any], strides: list[int] | None) -> torch.Tensor:
    dtype, shape = _TYPES[facts["dtype"]], facts["shape"]
    begin, end = facts["data_offsets"]
    made = torch.empty(shape, dtype=dtype)
    if math.prod(shape):
        # `frombuffer` keeps and checks the buffer, which is to be writable: so a copy comes first.
        bytes_ = torch.frombuffer(bytearray(view[begin:end]), dtype=torch.uint8)
        made.view(-1).view(torch.uint8).copy_(bytes_)
    if strides is None:
        return made
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(made)

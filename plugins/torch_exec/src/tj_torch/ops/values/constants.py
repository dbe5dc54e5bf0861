"""Tensor constants of bodies: names by content, and their text in finished programs."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import MutableMapping

import torch
from tj_core.extend import Constant

from tj_torch.torch_private.runtime import without_dispatch_modes

__all__ = ["of_text", "tensor_constant", "text"]

LARGEST = 1 << 16
"""Largest size in bytes of a constant that is kept as text."""


def tensor_constant(data: torch.Tensor, interned: MutableMapping[str, torch.Tensor]) -> Constant:
    """Constant named by its content, so that equal programs print alike.

    Tensors with equal content are one object in ``interned``, since bodies never write them.
    """
    name = _name(data, _content(data))
    return Constant(name, interned.setdefault(name, data), named=False)


def _content(data: torch.Tensor) -> bytes:
    """Bytes of the elements of ``data``, row by row."""
    with without_dispatch_modes():
        plain = data.detach().resolve_conj().resolve_neg().cpu().contiguous()
        return bytes(plain.clone().untyped_storage())


def _name(data: torch.Tensor, content: bytes) -> str:
    described = f"{data.dtype} {tuple(data.shape)} {data.stride()} {data.device}".encode()
    return f"_tensor_{hashlib.sha256(described + content).hexdigest()[:12]}"


def text(constant: Constant) -> str | None:
    """Text that `of_text` makes a constant of `tensor_constant` of; None if there is none.

    Only for contiguous CPU tensors of up to `LARGEST` bytes, whose content still has that name:
    the owner of any other tensor may change it.
    """
    data = constant.value
    if type(data) is not torch.Tensor or data.layout is not torch.strided:
        return None
    if data.device.type != "cpu" or data.numel() * data.element_size() > LARGEST:
        return None
    plain = not (data.is_conj() or data.is_neg() or data.requires_grad or data.is_quantized)
    if not plain or not data.is_contiguous():
        return None
    content = _content(data)
    if constant.text != _name(data, content):
        return None
    encoded = base64.b64encode(content).decode("ascii")
    return json.dumps([str(data.dtype), list(data.shape), list(data.stride()), encoded])


@functools.lru_cache(maxsize=256)
def of_text(found: str) -> torch.Tensor:
    """Tensor for a result ``found`` of `text`; one object per text."""
    dtype, shape, stride, encoded = json.loads(found)
    kind = getattr(torch, dtype.removeprefix("torch."))
    content = bytearray(base64.b64decode(encoded, validate=True))
    with without_dispatch_modes():
        empty = torch.empty(0, dtype=kind)
        flat = torch.frombuffer(content, dtype=kind).clone() if content else empty
        return flat.as_strided(shape, stride)

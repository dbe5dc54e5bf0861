"""Forms of tensors: plain memory, memory that stands for something else, and all others."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import torch

from tj_torch.torch_private.runtime import dispatch_key, key_set

__all__ = ["Form", "form_of"]


class Form(enum.Enum):
    """The form of a tensor, by which somebody may read its memory.

    ``PLAIN``: its elements are what its memory holds. ``BITS``: its conjugate or negative bit is
    set, or it is a tensor of zeros without any memory; a copy of it is plain. ``WRAPPED``: Python
    says what operations on it do. ``OTHER``: it is sparse, quantized, of another library, or stands
    for a batch.
    """

    PLAIN = "plain"
    BITS = "bits"
    WRAPPED = "wrapped"
    OTHER = "other"


def form_of(tensor: torch.Tensor) -> Form:
    """The form of ``tensor``."""
    keys = key_set(tensor)
    return _known(keys.raw_repr()) or _form(keys)


FORMS: dict[int, Form] = {}
"""The forms that are known, by the sets of keys as numbers."""

_known: Any = FORMS.get

WRAPPED = ("Python",)
OTHERS = ("FuncTorchBatched", "FuncTorchGradWrapper", "Functionalize", "NestedTensor")
BITS = ("Conjugate", "Negative", "ZeroTensor")


def _form(keys: Any) -> Form:
    if _has(keys, WRAPPED):
        found = Form.WRAPPED
    elif _has(keys, OTHERS) or not _has(keys, ("Dense",)):
        found = Form.OTHER
    else:
        found = Form.BITS if _has(keys, BITS) else Form.PLAIN
    FORMS[keys.raw_repr()] = found
    return found


def _has(keys: Any, names: Iterable[str]) -> bool:
    return any(keys.has(dispatch_key(name)) for name in names)

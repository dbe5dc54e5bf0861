"""Forms of tensors by dispatch keys: plain memory, lazy bits, wrapper subclasses, others."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tj_torch.torch_private.runtime import dispatch_key, key_set

if TYPE_CHECKING:
    import torch

__all__ = ["Form", "form_of", "keys"]


class Form(enum.Enum):
    """Form of a tensor, for code that reads its memory.

    ``PLAIN``: memory holds the elements. ``BITS``: the conjugate or negative bit is set, or it is
    a zero tensor without memory; a copy is plain. ``WRAPPED``: operations are in Python
    (``__torch_dispatch__``). ``OTHER``: sparse, quantized, nested, of another library, or a
    wrapper of `torch.func`.
    """

    PLAIN = "plain"
    BITS = "bits"
    WRAPPED = "wrapped"
    OTHER = "other"


def form_of(tensor: torch.Tensor) -> Form:
    """Form of ``tensor``."""
    keys = key_set(tensor)
    return _known(keys.raw_repr()) or _form(keys)


def keys(tensor: torch.Tensor) -> int:
    """The dispatch keys of ``tensor``, as bits: tensors with the same ones have the same form."""
    return int(key_set(tensor).raw_repr())


FORMS: dict[int, Form] = {}
"""Cache of forms by the raw representation of the dispatch key set, which mean the same in every
session: PyTorch has a few dozen of them.
"""

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
    # Few sets of keys occur, and each question crosses into C++.
    FORMS[keys.raw_repr()] = found
    return found


def _has(keys: Any, names: Iterable[str]) -> bool:
    return any(keys.has(dispatch_key(name)) for name in names)

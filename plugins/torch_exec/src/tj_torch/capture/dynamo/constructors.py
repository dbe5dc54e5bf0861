"""Calls of ``torch.Tensor`` with a size, which in a graph is a tuple: its items would be values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.patches import stop, with_subclasses
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["unpack_sizes"]


def unpack_sizes(stack: ExitStack) -> None:
    """Give ``torch.Tensor``, and classes like ``torch.FloatTensor``, the items of a size."""
    from tj_torch.torch_private.dynamo import user_defined

    for owner in with_subclasses(user_defined.UserDefinedClassVariable):
        if "call_function" in vars(owner):
            replace(stack, owner, "call_function", _making)


def _making(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        return original(self, tx, _sizes(self.value, args), kwargs)

    return call_function


def _sizes(made: object, args: Any) -> Any:
    """``args`` for a class, with the items of a size in its place if the class makes tensors."""
    from tj_torch.torch_private.dynamo import SizeVariable

    makes_tensors = made is torch.Tensor or isinstance(made, type(torch.FloatTensor))
    size = args[0].realize() if makes_tensors and len(args) == 1 else None
    if not isinstance(size, SizeVariable):
        return args
    if not size.items:
        stop("a tensor of a size without dimensions")
    return list(size.items)

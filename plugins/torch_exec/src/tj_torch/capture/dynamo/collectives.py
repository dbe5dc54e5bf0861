"""Collectives that write to an argument, as ``dist.all_reduce(y)``.

Dynamo captures them as functional collectives that are copied to the argument, and that have
gradients: collectives of their own. In eager they have none. Where what is written needs a
gradient, eager's is that of the value before, computed in part from the one after; PyTorch warns
that it may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Capture collectives that write without gradients, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import CollectiveFunctionRewriteVariable

    replace(stack, CollectiveFunctionRewriteVariable, "call_function", _without_gradients)


def _without_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import GradModeVariable

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(map(_needs_gradient, _written(self.fn, args, kwargs))):
            stop(f"{self.fn.__name__} writes to a tensor that needs a gradient")
        mode = GradModeVariable.create(tx, False)
        mode.enter(tx)
        try:
            return original(self, tx, args, kwargs)
        finally:
            mode.exit(tx)

    return call_function


def _written(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """The tensors that ``function`` writes: its first argument, or those in it, unless sent."""
    if function.__name__ == "isend":
        return []
    given = [*args, *(kwargs[name] for name in signature(function).parameters if name in kwargs)]
    first = given[0].realize()
    return [v.realize() for v in getattr(first, "items", None) or (first,)]


def _needs_gradient(variable: Any) -> bool:
    return bool(variable.is_tensor() and variable.requires_grad)

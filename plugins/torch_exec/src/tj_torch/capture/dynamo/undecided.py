"""Break the graph where Python, or an index, needs a number that depends on data.

Dynamo breaks it at ``if n:`` for a condition, and has no handler for the error of a number. The
whole program, not the part after the break, would run as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["leave_undecided"]


def leave_undecided(stack: ExitStack) -> None:
    """Break the graph at ``if len(x[mask]):``, a list of it, and an index ``x[:, n % 3]``."""
    from tj_torch.torch_private.dynamo import TensorVariable, symbolic_convert, utils

    if has(symbolic_convert, "guard_bool"):
        replace(stack, symbolic_convert, "guard_bool", _deciding)
    replace(stack, TensorVariable, "call_method", _deciding)  # `x[mask].tolist()`
    replace(stack, utils, "run_node", _indexing)


def _deciding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Raise the error that Dynamo expects where it decides on a number."""
    from tj_torch.torch_private.dynamo import exc
    from tj_torch.torch_private.shapes import GuardOnDataDependentSymNode

    def decide(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except GuardOnDataDependentSymNode as error:
            raise exc.UserError(exc.UserErrorType.ANTI_PATTERN, str(error)) from None

    return decide


def _indexing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Break the graph at an index that depends on data, which fake tensors refuse."""

    def run_node(tracer: Any, node: Any, args: Any, *rest: Any) -> Any:
        try:
            return original(tracer, node, args, *rest)
        except IndexError:
            if node.target in (operator.getitem, operator.setitem) and any(_unbacked(args[1])):
                stop("an index that depends on data")
            raise

    return run_node


def _unbacked(index: Any) -> Iterator[bool]:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for part in index if isinstance(index, tuple | list) else (index,):
        yield isinstance(part, torch.SymInt) and bool(free_unbacked_symbols(part))

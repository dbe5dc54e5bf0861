"""Arguments that Python or PyTorch refuses by their types, and that Dynamo takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["NAMES", "correct"]

NAMES = frozenset({"range", "set_grad_enabled"})
"""Names by which a program calls what has such arguments."""


def correct(stack: ExitStack) -> None:
    """Break the graph at ``range(2.0)`` and ``torch.set_grad_enabled(1)``, which raise in eager."""
    from tj_torch.torch_private.dynamo import BuiltinVariable, GradModeVariable

    replace(stack, BuiltinVariable, "call_range", _ranges)
    replace(stack, GradModeVariable, "_call_func", _grad_modes)


def _ranges(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_range(self: Any, tx: Any, *args: Any) -> Any:
        if any(map(_is_refused, args)):
            stop("range() takes integers")
        return original(self, tx, *args)

    return call_range


def _is_refused(variable: Any) -> bool:
    """Test for a number that is no integer, be it a constant or a symbol."""
    from tj_torch.torch_private.dynamo import ConstantVariable, SymNodeVariable

    if isinstance(variable, ConstantVariable):
        return not isinstance(variable.value, int)
    return isinstance(variable, SymNodeVariable) and not issubclass(variable.python_type(), int)


def _grad_modes(original: Callable[..., Any]) -> Callable[..., Any]:
    def _call_func(self: Any, tx: Any, values: Any) -> Any:
        if not all(isinstance(value, bool) for value in values):
            stop("torch.set_grad_enabled() takes True or False")
        return original(self, tx, values)

    return _call_func

"""Refuse keywords that name an argument already given by position, as Python does.

Dynamo passes them on, to functions with ``**kwargs``, and as ``self`` to modules without hooks,
whose ``__call__`` it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Refuse a keyword that names an argument by position."""
    from tj_torch.torch_private.dynamo import functions, nn_module

    replace(stack, functions, "bind_args_cached", _binding)
    replace(stack, nn_module.UnspecializedNNModuleVariable, "call_function", _calling)


def _binding(original: Callable[..., Any]) -> Callable[..., Any]:
    def bind_args_cached(func: Any, tx: Any, source: Any, args: Any, kwargs: Any) -> Any:
        if kwargs:
            code = func.__code__
            given = code.co_varnames[code.co_posonlyargcount : min(len(args), code.co_argcount)]
            if twice := next((name for name in given if name in kwargs), None):
                raise TypeError(f"{func.__name__}() got multiple values for argument {twice!r}")
        return original(func, tx, source, args, kwargs)

    return bind_args_cached


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if "self" in kwargs and self.value_type.__call__ is nn.Module.__call__:
            stop(f"{self.value_type.__name__} gets two values for self")
        return original(self, tx, args, kwargs)

    return call_function

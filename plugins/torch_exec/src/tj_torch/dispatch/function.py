"""Jitted functions: the callable with the name, signature and documentation of the function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tj_core.internal import callable_html

if TYPE_CHECKING:
    from tj_torch.dispatch.module import Dispatching

__all__ = ["wrap_function"]


def wrap_function(fn: Callable[..., Any], dispatcher: Dispatching) -> Any:
    """``fn`` jitted: a function with the same name, signature and documentation."""
    call = dispatcher.take_call()
    if hasattr(fn, "__name__"):
        functools.update_wrapper(call, fn)
    call.__tj__ = dispatcher.jitted  # type: ignore[attr-defined]
    call._repr_html_ = partial(callable_html, dispatcher.jitted)  # type: ignore[attr-defined]
    return call

"""The namespace ``tj`` of printed programs: calls that no dotted name can spell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["call", "constant", "method"]


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function``, a value that travels beside the program."""
    return function(*args, **kwargs)


def constant(value: Any, /) -> Any:
    """``value``, which travels beside the program."""
    return value


def method(name: str, value: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call method ``name`` of ``value``, an object of a type known only at run time."""
    return getattr(value, name)(*args, **kwargs)

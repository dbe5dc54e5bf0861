"""Several calls of a program as one: the first leaves state behind that the next takes up."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["EARLIER", "Step", "joined"]

Step: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, and its arguments."""


class _Earlier(enum.Enum):
    EARLIER = enum.auto()


EARLIER = _Earlier.EARLIER
"""Stands, among the arguments of a step, for the result of the step before."""


def joined(*steps: Step) -> Any:
    """Run ``steps`` one after another and return the last result.

    `EARLIER` is replaced where it is an argument itself, and not inside of one.
    """
    result: Any = None
    for function, args, kwargs in steps:
        given = [result if arg is EARLIER else arg for arg in args]
        named = {name: result if arg is EARLIER else arg for name, arg in kwargs.items()}
        result = function(*given, **named)
    return result

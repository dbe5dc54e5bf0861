"""Ways from a user's program to a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tj_core.contract.fields import FUNCTION, NAME, NUMBER, check_fields
from tj_core.host.jitted import Jitted

__all__ = ["Frontend"]


@dataclass(frozen=True, slots=True)
class Frontend:
    """A way from a user's program to a trace.

    ``accepts`` says whether the frontend wants the object; the first accepting one by descending
    ``priority`` wraps it. ``wrap`` returns what ``tj.jit`` returns: a callable that behaves as the
    object it wraps and carries the `Jitted` it was given as ``__tj__``.
    """

    name: str
    accepts: Callable[[Any], bool]
    wrap: Callable[[Any, Jitted], Any]
    priority: int = 0

    def __post_init__(self) -> None:
        check_fields(self, name=NAME, accepts=FUNCTION, wrap=FUNCTION, priority=NUMBER)

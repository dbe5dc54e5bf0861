"""Frontends: ways from a user's program to a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.contract.fields import FUNCTION, NAME, NUMBER, OPTIONAL_FUNCTION, check_fields

if TYPE_CHECKING:
    from tj_core.host.jitted import Jitted

__all__ = ["Frontend"]


@dataclass(frozen=True, slots=True)
class Frontend:
    """A way from a user's program to a trace.

    ``accepts`` returns True for an object that the frontend can capture; the first accepting
    frontend by descending ``priority`` wraps the object. ``wrap`` returns the result of ``tj.jit``:
    a callable that behaves as the object and has the given `Jitted` as ``__tj__``. ``states`` finds
    those behind a callable that is none: a module that holds some, or one that another system
    compiles through tj; None for any other object.
    """

    name: str
    accepts: Callable[[Any], bool]
    wrap: Callable[[Any, Jitted], Any]
    priority: int = 0
    states: Callable[[Any], Sequence[Jitted] | None] | None = None

    def __post_init__(self) -> None:
        check_fields(self, name=NAME, accepts=FUNCTION, wrap=FUNCTION, priority=NUMBER)
        check_fields(self, states=OPTIONAL_FUNCTION)

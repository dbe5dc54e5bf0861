"""The function that users tag values with."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["tag"]

T = TypeVar("T")


def tag(x: T, name: str) -> T:
    """Return ``x``, and in a jitted program put the tag called ``name`` on it.

    Frontends capture this call; outside of jitted programs it does nothing. An unknown name is a
    `TagError` when the program is compiled, at the line of this call.
    """
    return x

"""Call for an ``assert`` statement in programs."""

from __future__ import annotations

from typing import Any

__all__ = ["asserted"]


def asserted(condition: Any, *message: str) -> None:
    """Do ``assert condition, message``.

    :raises AssertionError: if the condition does not hold.
    """
    if not condition:
        raise AssertionError(*message)

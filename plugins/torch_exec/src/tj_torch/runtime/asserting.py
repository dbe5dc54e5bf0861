"""The call that stands for ``assert`` in programs."""

from __future__ import annotations

from typing import Any

__all__ = ["asserted"]


def asserted(condition: Any, *message: str) -> None:
    """Raise what ``assert condition`` raises, with ``message`` if there is one.

    :raises AssertionError: if the condition does not hold.
    """
    if not condition:
        raise AssertionError(*message)

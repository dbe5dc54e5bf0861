"""Layers chosen by patterns of their modules' paths."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

__all__ = ["chosen"]


def chosen(path: str, patterns: Sequence[str]) -> bool:
    """Decide if ``patterns`` choose the module at ``path``: the last pattern that fits decides.

    A pattern is one of the shell (``blocks.*.up``); after ``!`` it excludes.
    """
    taken = False
    for pattern in patterns:
        if fnmatchcase(path, pattern.removeprefix("!")):
            taken = not pattern.startswith("!")
    return taken

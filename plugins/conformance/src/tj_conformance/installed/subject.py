"""One program that runs as installed, and how it is compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Jit", "Subject"]

Jit = Callable[..., Any]
"""`tj_core.jit`, or what stands for it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A program of a family of programs, such as one operation of ``op_db``.

    ``run`` jits it, and returns what differs from eager. ``breaks``: parts of it are left to eager,
    for a reason that the tables of its family give.
    """

    family: str
    name: str
    run: Callable[[Jit], Iterable[str]]
    breaks: bool = False

    @property
    def id(self) -> str:
        """The name that no other program has."""
        return f"{self.family}: {self.name}"

"""One program that runs as installed, and how it is compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Jit", "Subject"]

Jit = Callable[..., Any]
"""`tj_core.jit`, or a function in its place."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A program of a family of programs, such as one operation of ``op_db``.

    ``run`` jits it, and returns the differences from eager. ``breaks``: the tables of its family
    give a reason to leave parts of it to eager. ``copies``: so it is for copies that it makes of
    jitted modules, of which only their warnings are known.
    """

    family: str
    name: str
    run: Callable[[Jit], Iterable[str]]
    breaks: bool = False
    copies: bool = False

    @property
    def id(self) -> str:
        """Its unique name."""
        return f"{self.family}: {self.name}"

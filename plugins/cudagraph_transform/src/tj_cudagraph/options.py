"""The options of tj-cudagraph, ``[tool.tj.cudagraph]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.cudagraph]``.

    ``minimum``: calls that compute in the smallest segment. ``warmup``: runs before a graph is
    captured. ``graphs``: graphs per segment, for inputs of other shapes or at other addresses;
    further inputs run without one. ``check`` and ``strict`` are the core's: with ``check=3`` every
    kernel's values are compared on the host, so there are no graphs; with ``strict`` a failed
    capture is an error.
    """

    minimum: int = 4
    warmup: int = 2
    graphs: int = 8
    check: Literal[0, 1, 2, 3, "sample"] = 0
    strict: bool = False

    def __post_init__(self) -> None:
        for name in ("minimum", "warmup", "graphs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and at least 1")

"""The options of tj-conformance, ``[tool.tj.conformance]``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.conformance]``.

    ``fuse``: an executor that runs regions as the text of their names takes part, for tests.
    """

    fuse: bool = False

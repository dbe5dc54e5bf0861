"""An answer of no, with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from tj_core.source import Source

__all__ = ["Decline"]


@dataclass(frozen=True, slots=True)
class Decline:
    """An answer of no, and why; shown by ``tj.explain``.

    An executor declines a call, a transform a program: that starts again from the acquired trace,
    without the transform and those of its plugin that make later stages. ``source`` is the user's
    line that the reason is found at. ``keep_all_calls``: errors of calls that nobody needs
    are wanted, too, so that nothing of the program is removed or merged.
    """

    reason: str
    source: Source | None = None
    keep_all_calls: bool = False

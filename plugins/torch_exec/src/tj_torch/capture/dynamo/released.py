"""What an error that nobody gets held is freed at once."""

from __future__ import annotations

import traceback

__all__ = ["let_go"]


def let_go(error: BaseException | None) -> None:
    """Empty the frames that ``error`` came through, and those of what it was raised from.

    They hold the arguments, and often the error itself: a cycle, which the garbage collector alone
    would end.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__

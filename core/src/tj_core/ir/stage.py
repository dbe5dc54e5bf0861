"""The stages a trace passes through; what holds at each is checked by `tj_core.verify.verifier`."""

from __future__ import annotations

import enum

__all__ = ["Stage"]


class Stage(enum.IntEnum):
    """How far a trace has come. A stage whose owner is not installed is skipped."""

    ACQUIRED = 0  # metadata, effects, context and source on every call; mutation in place
    FUNCTIONAL = 1  # nothing mutates
    JOINT = 2  # forward and backward in one trace
    LOWERED = 3  # dense values only, subclasses flattened at the boundary
    SPLIT = 4  # forward and backward apart, saved values chosen
    CLAIMED = 5  # every call belongs to an executor

"""The stages a trace passes through; `tj_core.verify.verifier` checks the invariants of each."""

from __future__ import annotations

import enum

__all__ = ["Stage"]


class Stage(enum.IntEnum):
    """A trace's place on the way from capture to execution. Stages without a plugin are skipped."""

    ACQUIRED = 0  # metadata, effects, context and source on every call; mutation in place
    FUNCTIONAL = 1  # nothing mutates
    JOINT = 2  # forward and backward in one trace
    LOWERED = 3  # dense values only, subclasses flattened at the boundary
    SPLIT = 4  # forward and backward apart, saved values chosen
    CLAIMED = 5  # every call belongs to an executor

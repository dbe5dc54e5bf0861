"""What is freed at once: what an error held that nobody gets, or a graph that nobody runs."""

from __future__ import annotations

import traceback

import torch

__all__ = ["empty", "let_go"]


def let_go(error: BaseException | None) -> None:
    """Empty the frames that ``error`` came through, and those of what it was raised from.

    They hold the arguments, and often the error itself: a cycle, which the garbage collector alone
    would end.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def empty(graph: torch.fx.GraphModule) -> None:
    """Take its tensors from a graph that nobody will run: it is a cycle, too."""
    for tensors in (graph._parameters, graph._buffers):
        tensors.clear()

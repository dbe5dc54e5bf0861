"""What is freed at once: what an error held that nobody gets, or a graph that nobody runs."""

from __future__ import annotations

import contextlib
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

__all__ = ["empty", "forget_tensors", "forgotten_after_failure", "let_go"]


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


def forget_tensors(mode: Any) -> None:
    """Drop what ``mode``, and that of the fakes which share its sizes, know real tensors by.

    They live as long as the guards. PyTorch does not swap a tensor to which somebody has a weak
    reference, as it does with parameters of subclasses where a module is converted.
    """
    fakes = (tracked.fake for tracked in getattr(mode.shape_env, "tracked_fakes", None) or ())
    modes = [mode, *(getattr(fake, "fake_mode", mode) for fake in fakes)]
    for each in {id(m): m for m in modes}.values():
        each.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()


@contextlib.contextmanager
def forgotten_after_failure() -> Iterator[None]:
    """Where what is done inside fails, let the modes made by it forget real tensors.

    Something of a capture that fails may outlive it, and the modes of its fakes with it.
    """
    from tj_torch.torch_private.shapes import FakeTensorMode

    made: list[weakref.ref[Any]] = []
    original, thread = FakeTensorMode.__init__, threading.get_ident()

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if threading.get_ident() == thread:
            made.append(weakref.ref(self))

    try:
        with mock.patch.object(FakeTensorMode, "__init__", init):
            yield
    except BaseException:
        for mode in (reference() for reference in made):
            if mode is not None:
                forget_tensors(mode)
        raise

"""Break reference cycles of swallowed errors and unused graphs, so that tensors are freed."""

from __future__ import annotations

import contextlib
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import torch

__all__ = ["empty", "forget_tensors", "forgotten_after_failure", "let_go"]


def let_go(error: BaseException | None) -> None:
    """Clear the frames in the traceback of ``error``, and of its causes.

    They hold the arguments, and often the error itself: a cycle, which only the garbage collector
    would free.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        # Dynamo raises its errors from those of operators, which hold arguments, too.
        error = error.__cause__ or error.__context__


def empty(graph: torch.fx.GraphModule) -> None:
    """Remove the tensors of a graph that will not run, which is a reference cycle, too."""
    for tensors in (graph._parameters, graph._buffers):
        tensors.clear()


def forget_tensors(mode: Any) -> None:
    """Drop weak references to real tensors in ``mode``, and in modes of fakes that share its sizes.

    They live as long as the guards. PyTorch refuses to swap a tensor with weak references, which it
    does to parameters of subclasses when a module is converted.
    """
    fakes = (tracked.fake for tracked in getattr(mode.shape_env, "tracked_fakes", None) or ())
    modes = [mode, *(getattr(fake, "fake_mode", mode) for fake in fakes)]
    for each in {id(m): m for m in modes}.values():
        each.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()


@contextlib.contextmanager
def forgotten_after_failure() -> Iterator[None]:
    """On an error inside, apply `forget_tensors` to all fake tensor modes made inside.

    Parts of a failed capture may stay alive, and with them the modes of its fakes.
    """
    from tj_torch.torch_private.shapes import FakeTensorMode

    made: list[weakref.ref[Any]] = []
    original, thread = FakeTensorMode.__init__, threading.get_ident()

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # Another thread may make modes of its own meanwhile, which it still needs.
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

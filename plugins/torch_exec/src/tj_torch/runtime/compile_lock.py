"""Dynamo's compile lock: who compiles holds it, in a call or in a thread behind the program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tj_core.extend import Beside

from tj_torch.runtime.beside import beside
from tj_torch.runtime.giving_way import answering, waiting
from tj_torch.torch_private.ops import without_saved_tensor_hooks

__all__ = ["BESIDE", "compile_lock"]


@contextlib.contextmanager
def compile_lock() -> Iterator[bool]:
    """Hold Dynamo's compile lock, which is reentrant; True if another thread held it before.

    The user's saved-tensor hooks are off inside, and do not see tensors saved by compiling.
    """
    from tj_torch.torch_private.dynamo import convert_frame

    lock = convert_frame.compile_lock
    if free := lock.acquire(blocking=False):
        lock.release()
    with waiting() as waited, lock, without_saved_tensor_hooks():
        waited()
        yield not free


@contextlib.contextmanager
def _step() -> Iterator[None]:
    with compile_lock(), beside():
        yield


BESIDE = Beside(_step, answering)
"""Contexts for a thread that compiles kernels while the program runs without them."""

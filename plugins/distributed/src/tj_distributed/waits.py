"""Waits for collectives that end when a rank has found that the ranks disagree.

PyTorch's wait cannot be left before the backend's timeout, and a rank whose partner raises instead
of joining would stay in it. So another thread waits, and this one looks for what was found.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tj_distributed.adapter import finish

if TYPE_CHECKING:
    import torch

__all__ = ["wait_for"]

_LOOK = 0.02
"""Seconds between two looks at what others have found."""


class _Waiter:
    """A thread that waits for one collective after another."""

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[tuple[torch.Tensor, threading.Lock, list[BaseException]]]
        self.given = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="tj-wait", daemon=True).start()

    def _serve(self) -> None:
        while True:
            tensor, done, answer = self.given.get()
            try:
                finish(tensor)
            except BaseException as error:  # the caller raises it
                answer.append(error)
            done.release()


_idle: list[_Waiter] = []
"""Waiters without work. One that an error has left in a wait does not come back."""


def wait_for(
    tensor: torch.Tensor, check: Callable[[], None], explain: Callable[[BaseException], None]
) -> None:
    """Wait until the collective that gives ``tensor`` has ended; ``check`` may raise before.

    PyTorch's own wait for ``tensor`` returns at once then. ``explain`` is given an error of the
    wait, and may raise another.
    """
    if tensor.device.type != "cpu":  # waits of other devices are for streams, and return at once
        return
    try:
        waiter = _idle.pop()
    except IndexError:
        waiter = _Waiter()
    done, answer = threading.Lock(), list[BaseException]()
    done.acquire()
    waiter.given.put((tensor, done, answer))
    while not done.acquire(timeout=_LOOK):
        check()
    _idle.append(waiter)
    if answer:
        explain(answer[0])
        raise answer[0]

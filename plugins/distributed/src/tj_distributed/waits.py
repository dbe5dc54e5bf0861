"""Waits for collectives that end when a rank has found that the ranks disagree.

PyTorch's wait cannot be left before the backend's timeout, and a rank whose partner raises instead
of joining would stay in it. So another thread waits, and this one looks for what was found. Where
all ranks are known to be in this program, none raises for that, and this thread waits itself:
handing a wait to another takes some 0.4 ms.

That thread is in the inference mode and the grad mode of this one: gloo's wait for a reduction to
shards copies into the result.

A thread of PyTorch 2.10 finds none of the collectives that another has started, and its wait is
over at once. Only a backward finds those of the thread of its forward; there, the other thread
runs one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from tj_distributed import names
from tj_distributed.adapter import finish

__all__ = ["Ranks", "Waits", "wait_for"]

_LOOK = 0.02
"""Seconds between two looks at what others have found."""


class _Waiter:
    """A thread that waits for one collective after another."""

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[tuple[_Wait, threading.Lock, list[BaseException]]]
        self.given = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="tj-wait", daemon=True).start()

    def _serve(self) -> None:
        while True:
            wait, done, answer = self.given.get()
            try:
                wait()
            except BaseException as error:  # the caller raises it
                answer.append(error)
            del wait  # and the tensor with it
            done.release()


_Wait = Callable[[], Any]


class Waits:
    """Threads that wait for others, and if they find collectives only in a backward.

    ``in_backward`` is seen in the first wait for a collective that this thread has started.
    """

    def __init__(self) -> None:
        self.in_backward: bool | None = None
        # One that an error has left in a wait does not come back.
        self._idle: list[_Waiter] = []

    def wait_for(
        self,
        tensor: torch.Tensor,
        check: Callable[[], None],
        explain: Callable[[BaseException], None],
    ) -> None:
        """Wait as the module's `wait_for` says."""
        unfinished = names.unfinished() if self.in_backward is None else 0
        wait = _in_backward(tensor) if self.in_backward else partial(finish, tensor)
        error = self._run(_in_modes_of_here(wait), check)
        if unfinished:
            self.in_backward = names.unfinished() == unfinished
            if self.in_backward:
                self._idle.clear()  # what has looked outside of a backward looks no other way
                self.wait_for(tensor, check, explain)
        if error is not None:
            explain(error)
            raise error

    def _run(self, wait: _Wait, check: Callable[[], None]) -> BaseException | None:
        """Error of ``wait``, which runs in another thread; ``check`` may raise before."""
        try:
            waiter = self._idle.pop()
        except IndexError:
            waiter = _Waiter()
        done, answer = threading.Lock(), list[BaseException]()
        done.acquire()
        waiter.given.put((wait, done, answer))
        while not done.acquire(timeout=_LOOK):
            check()
        self._idle.append(waiter)
        return answer[0] if answer else None


def _in_modes_of_here(wait: _Wait) -> _Wait:
    """Wrap ``wait`` for another thread: it runs in the modes of this one."""
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def run() -> None:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            wait()

    return run


class _Finish(torch.autograd.Function):
    """Identity whose backward waits for a collective of the thread that ran the forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
        ctx.held = held
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None]:
        finish(*ctx.held)
        return None, None


def _in_backward(tensor: torch.Tensor) -> _Wait:
    """Make a backward that waits for the collective which gives ``tensor``, for another thread."""
    # In the modes of the caller autograd may record nothing.
    with torch.inference_mode(False), torch.enable_grad():
        # On the CPU, whatever the default device: autograd runs its nodes in the thread that calls
        # `backward`, those of other devices in threads of its own.
        x = torch.ones((), device="cpu", requires_grad=True)
        made: torch.Tensor = _Finish.apply(x, [tensor])  # type: ignore[no-untyped-call]
        return made.backward


class Ranks(Protocol):
    """Knowledge of the ranks of all groups."""

    def settled(self) -> bool:
        """True if all are known to be in programs that agree."""
        ...

    def check(self) -> None:
        """Raise if some are found to disagree."""
        ...

    def explain(self, error: BaseException) -> None:
        """Say of ``error``, of a wait, what the ranks were doing; may raise another."""
        ...


# Collectives are the process's, and so are the threads that wait for them.
_WAITS = Waits()


def wait_for(tensor: torch.Tensor, ranks: Ranks) -> None:
    """Wait until the collective that gives ``tensor`` has ended, or until ``ranks`` disagree.

    PyTorch's own wait for ``tensor`` returns at once then.
    """
    if tensor.device.type != "cpu":  # waits of other devices are for streams, and return at once
        return
    if ranks.settled():
        try:
            finish(tensor)
        except Exception as error:  # of the backend; an interrupt of the user's is none
            ranks.explain(error)
            raise
    elif names.WAITS not in names.TABLE.lost:
        _WAITS.wait_for(tensor, ranks.check, ranks.explain)

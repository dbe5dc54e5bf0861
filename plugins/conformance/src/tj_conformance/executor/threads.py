"""The probe of two threads, which run each line of a kernel's Python at the same time."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from tj_conformance.executor.comparison import Differs, same
from tj_conformance.executor.running import EagerRaises, Function, copies, eager, run
from tj_conformance.oracle.device import random_state, restore_random_state

if TYPE_CHECKING:
    from types import FrameType

    from tj_conformance.executor.calls import Call

__all__ = ["threads"]

ROUNDS = 4
VISITS = 2
"""Runs of one line that are in step: a context switch for each line of a loop takes minutes."""

SECONDS = 0.01
"""Longest wait for the other thread, which may wait for a lock that this one holds."""

PATIENCE = 50
"""Waits in vain, after which the threads run freely."""

OWN = ("torch", "tj_core", "tj_torch", "tj_autograd", "tj_conformance.executor.calls",
       "tj_conformance.executor.comparison", "tj_conformance.executor.running",
       "tj_conformance.executor.threads", "tj_conformance.gradients", "tj_conformance.oracle",
       *sys.stdlib_module_names)  # fmt: skip
"""Modules whose lines are not in step, as they are no executor's."""


_Line = tuple[CodeType, int]


class _InStep:
    """Two threads in step: none begins a line before the other has begun as many."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.lines = [0, 0]
        self.visits = (Counter[_Line](), Counter[_Line]())
        self.ended = [False, False]
        self.patience = PATIENCE

    def tracer(self, mine: int) -> Callable[[FrameType, str, Any], Any]:
        """The trace function of a thread."""

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            module = frame.f_globals.get("__name__", "")
            if any(module == own or module.startswith(f"{own}.") for own in OWN):
                return None
            if event == "line":
                self.line(mine, (frame.f_code, frame.f_lineno))
            return trace

        return trace

    def line(self, mine: int, which: _Line) -> None:
        """Begin a line."""
        self.visits[mine][which] += 1
        if self.visits[mine][which] > VISITS:
            return
        other = 1 - mine
        with self.changed:
            self.lines[mine] += 1
            self.changed.notify_all()
            if self.patience and not self.changed.wait_for(
                lambda: self.ended[other] or self.lines[other] >= self.lines[mine], SECONDS
            ):
                self.patience -= 1

    def end(self, mine: int) -> None:
        """Leave the other thread alone."""
        with self.changed:
            self.ended[mine] = True
            self.changed.notify_all()


def threads(jit: Callable[..., Any], f: Function, call: Call, kind: str) -> None:
    """Two threads that call one callable at once get what each gets alone."""
    calls = call, call.other()
    if _draws(f, call, kind):
        raise EagerRaises("threads draw from one generator")
    for each in calls:
        eager(f, each, kind)
    jitted = jit(f)
    grad = kind != "forward"
    alone = [copies(run(jitted, each.twins(grad), kind)) for each in calls]
    found: list[str] = []
    start, steps = threading.Barrier(2), _InStep()

    def work(number: int, mine: Call, expected: Any) -> None:
        given = [mine.twins(grad) for _ in range(ROUNDS)]
        start.wait()
        sys.settrace(steps.tracer(number))
        try:
            for each in given:
                same(copies(run(jitted, each, kind)), expected, "result in one of two threads")
        except Exception as problem:
            found.append(str(problem) or type(problem).__name__)
        finally:
            sys.settrace(None)
            steps.end(number)

    _at_once(work, [(0, calls[0], alone[0]), (1, calls[1], alone[1])])
    if found:
        raise Differs(found[0])


def _draws(f: Function, call: Call, kind: str) -> bool:
    before = random_state()
    eager(f, call, kind)
    torch.manual_seed(11)
    same_state = random_state()
    eager(f, call, kind)
    drawn = not all(map(torch.equal, same_state, random_state()))
    restore_random_state(before)
    return drawn


def _at_once(work: Callable[..., None], given: list[tuple[Any, ...]]) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        running = [threading.Thread(target=work, args=each) for each in given]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

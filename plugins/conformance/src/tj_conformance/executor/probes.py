"""The probes: functions that raise if an executor goes wrong for one call of an operation.

Each takes ``jit``, which compiles with the executor, the function ``f``, a `Call` of it, and the
kind of run (`RUNS`). A program that a finding prints calls one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError
from torch.autograd.gradcheck import gradcheck as finite_differences

from tj_conformance.executor.calls import SPECIAL_VALUES, Call, tensors
from tj_conformance.executor.comparison import Differs, same
from tj_conformance.executor.running import (
    EagerRaises,
    Function,
    alike,
    continued,
    copies,
    eager,
    run,
    see,
)
from tj_conformance.executor.threads import threads

__all__ = [
    "PROBES", "Call", "Jit", "Probe", "calls", "continued", "errors", "gradcheck", "kept",
    "raises", "sizes", "special", "symbols", "threads", "writes",
]  # fmt: skip

Jit = Callable[..., Any]
"""`tj.jit` with an executor, in a strict session; it takes ``dynamic=``."""

Probe = Callable[[Jit, Function, Call, str], None]


def calls(jit: Jit, f: Function, call: Call, kind: str) -> None:
    """Two calls do what eager does: results, arguments, memory they share, random state."""
    jitted = jit(f)
    for _ in range(2):  # what is compiled, and what is found compiled
        alike(jitted, f, call, kind)


def special(jit: Jit, f: Function, call: Call, kind: str) -> None:
    """Zeros, ones, one sign, large and small numbers, infinities and NaN."""
    jitted = jit(f)
    see(jitted, call, kind)
    for name, fill in SPECIAL_VALUES.items():
        try:
            alike(jitted, f, call.filled(fill), kind)
        except EagerRaises:
            continue
        except Differs as problem:
            raise Differs(f"{name}: {problem}") from None


def kept(jit: Jit, f: Function, call: Call, kind: str) -> None:
    """Results and arguments that are kept stay as they are while later calls run."""
    jitted = jit(f)
    eager(f, call, kind)
    eager(f, call.other(), kind)
    first = see(jitted, call, kind)
    values = first.results, first.given.args, dict(first.given.kwargs)
    before = copies(values)
    for later in (call, call.other()):
        see(jitted, later, kind)
    same(copies(values), before, "value kept during later calls")
    _backward_later(jitted, f, call, kind)


def _backward_later(jitted: Function, f: Function, call: Call, kind: str) -> None:
    """Take gradients of a call after another one ran: nothing saved was overwritten."""
    if kind == "gradients":
        other = call.other()
        both = (call.args, dict(call.kwargs), other.args, dict(other.kwargs))
        alike(jitted, f, Call(both), "gradients after a later call")


def sizes(jit: Jit, f: Function, call: Call, kind: str) -> None:
    """One callable for several sizes, compiled for each: larger, smaller again, largest."""
    _resized(jit(f, dynamic=False), f, call, kind, (1, 2, 1, 3))


def symbols(jit: Jit, f: Function, call: Call, kind: str) -> None:
    """One callable for several sizes, which are symbols."""
    _resized(jit(f, dynamic=True), f, call, kind, (2, 3, 1, 4))


def _resized(jitted: Function, f: Function, call: Call, kind: str, times: tuple[int, ...]) -> None:
    for n in times:
        try:
            alike(jitted, f, call.resized(n) if n > 1 else call, kind)
        except Differs as problem:
            raise Differs(f"{n} times the size: {problem}") from None


def writes(jit: Jit, f: Function, call: Call, kind: str) -> None:
    """A program that writes to the arguments before and after the call, and to its results."""
    if kind != "forward" or call.shared:
        raise EagerRaises("nothing is written where gradients are taken")

    def program(*args: Any, **kwargs: Any) -> Any:
        given = [x for x in (*args, *kwargs.values()) if _writable(x)]
        for x in given:
            x.mul_(0.5)
        first = f(*args, **kwargs)
        for x in given:
            x.add_(0.25)
        second = f(*args, **kwargs)
        if _writable(first):
            first.add_(1)
        return first, second

    jitted = jit(program)
    for _ in range(2):
        alike(jitted, program, call, kind)


def _writable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def raises(jit: Jit, f: Function, call: Call, kind: str) -> None:
    """A program that raises after the call, in its first and in later runs, and not in others."""

    def program(at: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs), torch.take(torch.arange(3.0, device="cpu"), at)

    # On the CPU: a GPU notes a bad index later, and all that runs in the process fails from then.
    places = (torch.tensor([n], device="cpu") for n in (1, 7))
    right, wrong = (Call((at, *call.args), call.kwargs) for at in places)
    eager(program, right, kind)
    for order in ((wrong, right, right), (right, wrong, right)):
        jitted = jit(program)
        for given in order:
            if given is right:
                alike(jitted, program, right, kind)
            else:
                _raises(jitted, program, wrong, kind)


def errors(jit: Jit, f: Function, wrong: Call, right: Call | None = None) -> None:
    """A call that must raise does, and a right call is right before and after it."""
    for order in ((wrong, right), (right, wrong, right)):
        jitted = jit(f)
        for given in order:
            if given is wrong:
                _raises(jitted, f, wrong, "forward")
            elif given is not None:
                alike(jitted, f, given)


def _raises(jitted: Function, f: Function, call: Call, kind: str) -> None:
    """Raise unless both raise exceptions of one type."""
    found: list[str] = []
    for fn in (f, jitted):
        try:
            see(fn, call, kind)
            found.append("nothing")
        except Exception as error:
            found.append(f"{type(error).__name__}")
            text = str(error).partition("\n")[0]
    expected, got = found
    if expected == "nothing":
        raise EagerRaises("it does not raise in eager")
    if got != expected:
        raise Differs(f"raises {got} instead of {expected} ({text})")


def gradcheck(jit: Jit, f: Function, call: Call, kind: str) -> None:
    """The gradient is that of finite differences, where eager's is."""
    if kind != "gradients" or any(x.dtype is not torch.float64 for x in _wanted(call)):
        raise EagerRaises("finite differences need gradients in float64")
    try:
        finite_differences(*_checked(f, call), fast_mode=True)
    except Exception as error:
        raise EagerRaises("eager's gradient is not that of finite differences") from error
    try:
        finite_differences(*_checked(jit(f), call), fast_mode=True)
    except GradcheckError as error:
        raise Differs(str(error).partition("\n")[0]) from None


def _wanted(call: Call) -> list[torch.Tensor]:
    return [x for x in tensors(call) if x.requires_grad]


def _checked(fn: Function, call: Call) -> tuple[Function, list[torch.Tensor]]:
    """A function of the differentiable arguments, and these."""
    given = call.twins(grad=True)
    wanted = _wanted(given)

    def function(*values: torch.Tensor) -> Any:
        swapped = {id(x): v for x, v in zip(wanted, values, strict=True)}
        torch.manual_seed(0)
        return run(fn, given.swapped(swapped))

    return function, wanted


PROBES: dict[str, Probe] = {
    "calls": calls,
    "kept": kept,
    "special": special,
    "threads": threads,
    "sizes": sizes,
    "symbols": symbols,
    "writes": writes,
    "raises": raises,
    "gradcheck": gradcheck,
}
"""The probes by name, the cheapest first."""

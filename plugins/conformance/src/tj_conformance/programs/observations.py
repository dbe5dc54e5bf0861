"""Programs as text, called several times while values change, with all that a caller sees of a
call.

Eager and tj run a program in modules of their own, so that its state is separate.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch
from tj_torch.internal import thread_state

from tj_conformance.oracle.compare import Difference, differences
from tj_conformance.oracle.device import seed

__all__ = ["Jit", "SeenProgram", "differences_seen", "warned"]

Jit = Callable[[Callable[..., Any]], Callable[..., Any]]

# Numbers of modules that are made: `sys.modules` and `linecache` are the process's.
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class SeenProgram:
    """A module's ``text``, and expressions in it for the arguments of each call.

    The module defines ``program``. It may define ``call(program, *args)``, by which the program is
    called, and ``state()``, which returns its state.
    """

    name: str
    text: str
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """Record of one call: its result or error, and the arguments and the state afterwards.

    ``left`` names settings of the thread that it leaves changed.
    """

    outcome: Any
    arguments: Any
    state: Any
    left: tuple[str, ...]


def differences_seen(
    program: SeenProgram, jit: Jit = tj.jit, *, rounding: bool = False
) -> list[Difference]:
    """Compare the calls of ``program`` in eager and under ``jit``; return the differences."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = list(zip(_run(program, jit), _run(program, lambda f: f), strict=True))
    for n, (got, expected) in enumerate(pairs):
        for part in ("outcome", "arguments", "state", "left"):
            where = f"call {n}, {part}"
            found += differences(getattr(got, part), getattr(expected, part), where)
    return [d for d in found if not (rounding and d.rounding)]


def warned(program: SeenProgram, jit: Jit = tj.jit) -> list[str]:
    """Warnings of tj while ``program`` is called."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _run(program, jit)
    return [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]


def _run(program: SeenProgram, jit: Jit) -> list[Seen]:
    seed(5)
    module = _module(program)
    function = jit(module.program)
    call = functools.partial(getattr(module, "call", _plain_call), function)
    state = getattr(module, "state", tuple)
    return [_seen(call, eval(text, vars(module)), state) for text in program.calls]


def _plain_call(function: Callable[..., Any], *args: Any) -> Any:
    """The result and, if it requires a gradient, the gradients of the arguments."""
    result = function(*args)
    first = result[0] if isinstance(result, tuple) else result
    if not (isinstance(first, torch.Tensor) and first.requires_grad):
        return result
    first.sum().backward()
    return result, [a.grad for a in args if isinstance(a, torch.Tensor)]


def _seen(call: Callable[..., Any], args: tuple[Any, ...], state: Callable[[], Any]) -> Seen:
    before = thread_state.snapshot()
    try:
        outcome = _detached(call(*args))
    except Exception as error:
        outcome = [type(error), [repr(a) for a in error.args]]
    left = thread_state.changes(before)
    torch.set_grad_enabled(True)
    return Seen(outcome, _detached([a for a in args if _is_data(a)]), _detached(state()), left)


def _is_data(value: Any) -> bool:
    return isinstance(value, torch.Tensor | int | float | str | list)


def _detached(value: Any) -> Any:
    """A copy of ``value``, which later writes do not change."""
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), value)


def _module(program: SeenProgram) -> types.ModuleType:
    number = next(_serial)
    file = f"<{program.name} {number}>"
    linecache.cache[file] = (len(program.text), None, program.text.splitlines(True), file)
    module = types.ModuleType(f"seen_program_{number}")
    sys.modules[module.__name__] = module  # where dataclasses and guards look for it
    exec(compile(program.text, file, "exec"), vars(module))
    return module

"""Probes that compare a small program in eager with itself under ``tj.jit``.

They compare values, types, strides, who is who, and what the program does to objects.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
import types
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch

if TYPE_CHECKING:
    from tj_torch.torch_private.tables import Probe

__all__ = [
    "captured_for_most",
    "captured_whole",
    "equal_to_eager",
    "jitted",
    "only_breaks",
    "scope_of",
]

# Numbers of modules that are made: `sys.modules` and `linecache` are the process's.
_serial = itertools.count()


def equal_to_eager(
    text: str,
    *calls: str,
    plugins: tuple[str, ...] = ("torch",),
    leaves_frames: bool = False,
    **overrides: Any,
) -> Probe:
    """A probe that compares ``calls`` of the function ``f`` that ``text`` defines.

    Calls are expressions, evaluated in turn in the namespace of the text, where ``torch`` is. The
    graph may break. That a frame is left to Python fails the probe: its result is eager's even
    where tj replaces a function that takes other arguments in this PyTorch.

    :param plugins: those of the session; by default none that fuses or differentiates.
    :param leaves_frames: Python runs frames of this program in every PyTorch.
    :param overrides: options of the session.
    """

    def probe() -> None:
        reasons = _compared(text, calls, tj.Session(plugins, overrides=overrides))
        if not leaves_frames:
            _see_only(reasons, "graph break", "some calls run in eager")

    return probe


def captured_whole(text: str, *calls: str) -> None:
    """See that ``calls`` of ``f`` are eager's, and that the program is captured as a whole."""
    reasons = _compared(text, calls, tj.Session(["torch"]))
    assert not reasons, reasons[0]


def only_breaks(text: str, *calls: str) -> None:
    """See that ``calls`` of ``f`` are eager's, and that the graph breaks, but no frame is left."""
    reasons = _compared(text, calls, tj.Session(["torch"]))
    assert reasons, "the program is captured whole"
    _see_only(reasons, "graph break")


def captured_for_most(text: str, *calls: str) -> None:
    """See that ``calls`` of ``f`` are eager's, and that only some of them run in eager."""
    reasons = _compared(text, calls, tj.Session(["torch"]))
    assert reasons, "the program is captured for all data"
    _see_only(reasons, "some calls run in eager")


def _see_only(reasons: list[str], *kinds: str) -> None:
    others = [reason for reason in reasons if not reason.startswith(kinds)]
    assert not others, others[0]


def _compared(text: str, calls: tuple[str, ...], session: tj.Session) -> list[str]:
    """The reasons of fallbacks of a program whose ``calls`` are eager's."""
    expected = _outcomes(text, calls)
    reasons: list[str] = []
    for call, a, b in zip(calls, expected, _outcomes(text, calls, session, reasons), strict=True):
        assert a == b, f"{call} is {b}, in eager {a}"
    return reasons


def _outcomes(
    text: str,
    calls: tuple[str, ...],
    session: tj.Session | None = None,
    reasons: list[str] | None = None,
) -> list[Any]:
    with scope_of(text) as scope:
        program = scope["f"]
        if session is not None:
            scope["f"] = program = jitted(program, session)
        with warnings.catch_warnings(), torch.enable_grad():  # a probe may leave gradients off
            warnings.simplefilter("ignore")
            results = [_outcome(call, scope) for call in calls]
        if reasons is not None:
            reasons += [fallback.reason for fallback in tj.stats(program).fallbacks]
        return results


def jitted(program: Any, session: tj.Session) -> Any:
    """``program`` under tj."""
    return tj.jit(program, session=session)


@contextlib.contextmanager
def scope_of(text: str) -> Iterator[dict[str, Any]]:
    """The globals of a module with this text, as a user's file is."""
    name = f"tj_probe_{next(_serial)}"
    module = types.ModuleType(name)
    file = f"<{name}>"
    # Dynamo reads source lines, which no file has here.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    sys.modules[name] = module
    scope = vars(module)
    scope["torch"] = torch
    state = torch.get_rng_state()
    try:
        torch.manual_seed(0)
        exec(compile(text, file, "exec"), scope)
        yield scope
    finally:
        torch.set_rng_state(state)
        del sys.modules[name], linecache.cache[file]


def _outcome(call: str, scope: dict[str, Any]) -> Any:
    try:
        return _described(eval(call, scope))
    except Exception as error:
        # Later lines of a message have stacks and hints, which differ under tj.
        return type(error).__name__, str(error).partition("\n")[0]


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        return type(value).__name__, str(value.dtype), tuple(value.stride()), repr(plain.tolist())
    if isinstance(value, dict):
        return type(value).__name__, [(repr(k), _described(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_described(v) for v in value]
    return type(value).__name__, repr(value)

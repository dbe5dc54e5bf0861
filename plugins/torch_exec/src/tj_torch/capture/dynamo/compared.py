"""Compare small programs, given as text, in eager and under ``tj.jit``: the probes of corrections.

Each probe compares a program in eager with itself under ``tj.jit``: values, types, who is who, what
it does to objects. Without its correction the two differ in some version of PyTorch; a name that is
still there and is asked for nothing any more is found by that. A program that falls back to eager
is right.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tj_core as tj
import torch

__all__ = ["Probe", "captured", "equal_to_eager"]

Probe = Callable[[], None]

_serial = itertools.count()


def equal_to_eager(text: str, *calls: str) -> Probe:
    """A probe that compares ``calls`` of the function ``f`` that ``text`` defines.

    Calls are expressions, evaluated in turn in the namespace of the text, where ``torch`` is.
    """

    def probe() -> None:
        expected, found = (_outcomes(text, calls, jitted) for jitted in (False, True))
        for call, a, b in zip(calls, expected, found, strict=True):
            assert a == b, f"{call} is {b}, in eager {a}"

    return probe


def _outcomes(text: str, calls: tuple[str, ...], jitted: bool) -> list[Any]:
    with _scope(text) as scope:
        if jitted:
            scope["f"] = _jitted(scope["f"])
        with warnings.catch_warnings(), torch.enable_grad():  # a probe may leave gradients off
            warnings.simplefilter("ignore")
            return [_outcome(call, scope) for call in calls]


def _jitted(program: Any) -> Any:
    """``program`` without the plugins that fuse or differentiate: they are not asked about."""
    return tj.jit(program, session=tj.Session(["torch"]))


@contextlib.contextmanager
def _scope(text: str) -> Iterator[dict[str, Any]]:
    """The globals of a module with this text, as a user's file is."""
    name = f"tj_probe_{next(_serial)}"
    module = types.ModuleType(name)
    file = f"<{name}>"
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


def captured() -> None:
    """See that a program is captured: one that falls back is right, and nothing is compiled."""
    with _scope(_EXAMPLE) as scope, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f, args = scope["f"], (torch.ones(2, 3), torch.ones(3, 3))
        jitted = _jitted(f)
        assert torch.equal(jitted(*args), f(*args)), "the result is another than eager's"
        fallbacks = [fallback.reason for fallback in tj.stats(jitted).fallbacks]
        assert not fallbacks, fallbacks[0]
        assert "gelu" in str(tj.last_trace(jitted)), "the program has no trace"


_EXAMPLE = """
def f(x, w):
    y = torch.nn.functional.gelu(x @ w)
    return y / y.sum(-1, keepdim=True)
"""

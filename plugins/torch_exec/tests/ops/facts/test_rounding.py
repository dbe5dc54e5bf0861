"""Calls whose results must be the same bits wherever they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_torch.internal import decided, read_apart

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

X = torch.randn(4, 6)
FUNCTIONS = ("sin", "exp")


def rounds(call: BoundSymbol) -> bool:
    return call.symbol.path.rpartition(".")[0] in FUNCTIONS or call.symbol.path in FUNCTIONS


def names(f: Callable[..., Any]) -> set[str]:
    """Names of what is computed once in the joint trace of ``f``."""
    jitted = tj.jit(f, plugins=["torch", "autograd"])
    jitted(X.clone().requires_grad_()).sum().backward()
    trace = tj.last_trace(jitted, stage="JOINT")
    return set(decided(trace.calls, rounds, lambda call: "BACKWARD" in call.tags))


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: x.sin().amax(-1), {"sin"}),
        (lambda x: (x.sin() * 2).abs().amax(-1), {"sin"}),
        (lambda x: x.sin().norm(p=torch.inf), {"sin"}),
        (lambda x: x.sin().norm(p=2), set()),
        (lambda x: x.amax(-1), set()),
        (lambda x: x.sin().max(-1).values, set()),  # the backward has the places
        (lambda x: x.sin().exp().amax(-1), {"exp"}),
        (lambda x: F.relu(x.sin()), set()),
        (lambda x: torch.where(x.sin() > x.sin().mean(), x, 2 * x), set()),
        # Equal calls become one.
        (lambda x: torch.maximum(x.sin(), x.sin().amax()), {"sin", "sin_1"}),
        # The forward's decision is what is kept.
        (lambda x: (lambda h: (h.detach() >= h.detach().amax()) * h)(x.sin()), {"ge"}),
    ],
    ids=range(11),
)
def test_decided(f: Callable[..., Any], expected: set[str]) -> None:
    assert names(f) == expected


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: (lambda h: h - h.amax())(x.sin()), 1),
        (lambda x: (lambda h: h - h.sum())(x.sin()), 0),
        (lambda x: (lambda h: h - h.amax())(x * 2), 0),
        (lambda x: x.sin().amax() + x, 0),
        (lambda x: (lambda h: (h.amax(), h.abs()))(x.sin() * 2), 1),
        (lambda x: (lambda h: (h.argmax(), h))(x.sin()), 1),
        (lambda x: (lambda h: h.exp() - h.exp().amax())(x.sin()), 1),
    ],
    ids=range(7),
)
def test_read_apart(f: Callable[..., Any], expected: int) -> None:
    jitted = tj.jit(f, plugins=["torch"])
    jitted(X)
    trace = tj.last_trace(jitted)
    out = trace.outputs if isinstance(trace.outputs, tuple) else (trace.outputs,)
    found = read_apart(trace.calls, [p for p in out if hasattr(p, "name")], rounds)
    assert len(found) == expected

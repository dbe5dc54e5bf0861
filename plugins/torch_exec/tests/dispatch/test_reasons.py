"""The reason of a recompilation: what has changed, with the old and the new value."""

from __future__ import annotations

import logging
import warnings

import pytest
import tj_core as tj
import torch

X = torch.ones(3)


def reasons(f):
    return [p.entry.reason for p in tj.programs(f)]


@pytest.mark.parametrize("kind", ["jit", "compile"])
def test_what_has_changed_old_and_new(kind):
    def program(x, k):
        return x * k["n"]

    f = tj.jit(program) if kind == "jit" else torch.compile(program, backend="tj")
    f(X, {"n": 2})
    f(X, {"n": 3})
    f(X.double(), {"n": 3})
    f(torch.ones(3, 1), {"n": 3})
    assert reasons(f) == [
        "",
        "k['n'] was 2, is 3",
        "tensor 'x' dtype mismatch. expected Float, actual Double",
        "tensor 'x' dtype mismatch. expected Double, actual Float",
    ]


def test_another_backend_is_no_recompilation():
    def program(x):
        return x * 2

    f, other = tj.jit(program), torch.compile(program, backend="tj")
    f(X)
    other(X)
    assert reasons(other) == [""]


def test_a_graph_break_is_logged_once_with_its_place(monkeypatch):
    lines = []

    class Keeping(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("tj.graph_breaks"), Keeping()
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()

    @tj.jit
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tj.TjWarning)
            broken(X)
            broken(X)
    finally:
        logger.removeHandler(handler)
    (line,) = lines
    assert "broken: test_reasons.py:" in line
    assert "torch._dynamo.graph_break(): graph break: Call to" in line
    assert "\n" not in line

"""Jitted callables in several threads at once, and compiles that fail half-way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Stage, Transform
from torch import nn

THREADS = 4


def together(work: Callable[[int], Any]) -> list[Any]:
    """Results of ``work(i)`` in ``THREADS`` threads that begin at the same time."""
    barrier = threading.Barrier(THREADS)

    def begin(i: int) -> Any:
        barrier.wait(timeout=60)
        return work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_one_program_compiled_by_all_at_once_is_compiled_once() -> None:
    f = lambda x: (x * 2).sin() + 1  # noqa: E731
    g = tj.jit(f)
    xs = [torch.full((3,), float(i)) for i in range(THREADS)]
    for got, x in zip(together(lambda i: g(xs[i])), xs, strict=True):
        same(got, f(x))
    assert tj.stats(g).misses == 1
    assert tj.stats(g).entries == 1
    assert tj.stats(g).calls == THREADS, "those that waited found it compiled"


def test_each_thread_its_own_specialisation() -> None:
    def f(x, k):
        return x * k + len(x.shape)

    g = tj.jit(f, dynamic=False)
    x = torch.arange(4.0)

    def work(i: int) -> list[torch.Tensor]:
        return [g(x, i + 1) for _ in range(5)]

    for i, got in enumerate(together(work)):
        for each in got:
            same(each, f(x, i + 1))
    assert tj.stats(g).misses == THREADS
    assert tj.stats(g).entries == THREADS


def test_different_programs_at_once() -> None:
    modules = [nn.Sequential(nn.Linear(3, 3 + i), nn.GELU()) for i in range(THREADS)]
    x = torch.randn(2, 3)

    def work(i: int) -> Any:
        g = tj.jit(modules[i])
        out = g(x)
        return out.detach(), torch.autograd.grad(out.sum(), list(modules[i].parameters()))

    for module, (out, gradients) in zip(modules, together(work), strict=True):
        same(out, module(x).detach())
        same(gradients, torch.autograd.grad(module(x).sum(), list(module.parameters())))


def test_threads_under_different_contexts() -> None:
    g = tj.jit(lambda x, w: x @ w)
    x, w = torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)

    def work(i: int) -> torch.Tensor:
        if i == 0:
            with torch.no_grad():
                return g(x, w)
        if i == 1:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return g(x, w)
        if i == 2:
            with torch.inference_mode():
                return g(x, w)
        return g(x, w)

    for _ in range(3):
        plain, low, inference, training = together(work)
        assert not plain.requires_grad
        assert low.dtype is torch.bfloat16
        assert inference.is_inference()
        assert training.requires_grad
        same(plain, training.detach())


def test_backward_in_another_thread() -> None:
    g = tj.jit(lambda w: (w.sin() * w).sum())
    w = torch.arange(3.0, requires_grad=True)
    out = g(w)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(out.backward).result()
    same(w.grad, torch.autograd.grad((w.sin() * w).sum(), w)[0])


def test_an_exception_while_compiling_leaves_everything_usable() -> None:
    attempts = []

    def fails_first(trace: Any, context: Any) -> Any:
        attempts.append(threading.get_ident())
        if len(attempts) == 1:
            raise ValueError("not yet")
        return trace

    g = tj.jit(lambda x: x + 1, transforms=[Transform("flaky", fails_first, Stage.ACQUIRED)])
    x = torch.zeros(3)
    with pytest.raises(tj.TjError, match="not yet"):
        g(x)
    assert tj.stats(g).entries == 0
    with pytest.raises(tj.TjError, match="has no trace"):
        tj.last_trace(g)
    for got in together(lambda i: g(x + i)):
        assert got.shape == (3,)
    assert len(attempts) == 2
    assert tj.stats(g).entries == 1
    same(tj.jit(lambda x: x * 2)(x), x * 2)


def test_failing_and_working_programs_at_once() -> None:
    def bad(x):
        return x @ x

    def good(x):
        return x * 3

    f, g = tj.jit(bad), tj.jit(good)
    x = torch.randn(2, 3)

    def work(i: int) -> Any:
        if i % 2:
            return g(x)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            f(x)
        return None

    for _ in range(2):
        for i, got in enumerate(together(work)):
            if i % 2:
                same(got, x * 3)

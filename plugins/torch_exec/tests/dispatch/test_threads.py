"""Jitted callables in several threads at once, and compiles that fail half-way."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Stage, Transform
from tj_torch.runtime.compile_lock import compile_lock
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


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def while_one_compiles(work: Callable[[int], Any]) -> list[Any]:
    """Results of ``work(i)`` in threads that all want to compile while this one does."""

    def waits(ident: int | None) -> bool:
        frame = sys._current_frames().get(ident or 0)
        while frame is not None and frame.f_code is not compile_lock.__wrapped__.__code__:  # type: ignore[attr-defined]
            frame = frame.f_back
        return frame is not None

    results: list[Any] = [None] * THREADS

    def run(i: int) -> None:
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    with compile_lock(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # a state that must not stay
        for thread in threads:
            thread.start()
        until = time.monotonic() + 60
        while not all(waits(t.ident) for t in threads):
            assert time.monotonic() < until
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    return results


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_a_part_that_all_want_at_once_is_compiled_once() -> None:
    """Each would count for Dynamo's limit, at which a function is not compiled any more."""
    g = tj.jit(broken)
    x = torch.rand(3)
    g(x)
    assert tj.stats(g).entries == 2
    for got in while_one_compiles(lambda i: g(x.double() + i)):
        assert got.dtype is torch.float64
    assert tj.stats(g).entries == 4
    g(x.double())
    assert tj.stats(g).calls == 1 + THREADS + 1
    assert tj.stats(g).entries == 4


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_a_part_leaves_no_state_of_another_threads_capture() -> None:
    jitted = [tj.jit(broken) for _ in range(THREADS)]
    before = list(warnings.filters)
    while_one_compiles(lambda i: jitted[i](torch.rand(3)))
    assert warnings.filters == before
    while_one_compiles(lambda i: jitted[i](torch.rand(3).double()))
    assert warnings.filters == before


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_counts_add_up(switching: None) -> None:
    module = nn.Linear(2, 2)
    jitted = [tj.jit(f) for f in (lambda x: x.sin() * 2, lambda x: (x, x + 1), module, broken)]
    xs = [torch.rand(n, 2) for n in (2, 3, 4)]
    sets = [torch.rand(n, 2) for n in (2, 3)]

    def work(i: int) -> None:
        for n in range(60):
            jitted[(n + i) % 4](xs[(n // 4 + i) % 3] if n % 4 else sets[i % 2])

    together(work)
    for each in jitted:
        stats = tj.stats(each)
        assert stats.calls == stats.hits + stats.misses + stats.eager == THREADS * 15
        assert stats.entries <= stats.misses <= 8

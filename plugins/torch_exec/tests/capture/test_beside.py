"""State of the process that a thread leaves alone while it compiles beside the program."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tj_torch.runtime.beside import beside, is_beside, tracing_alone
from tj_torch.runtime.thread_state import kept
from torch.fx.experimental.proxy_tensor import make_fx


def in_both(inner: Callable[[], Any], outer: Callable[[], Any]) -> Any:
    """Result of ``inner`` in a thread that is beside, after ``outer`` in this one meanwhile."""
    there, on = threading.Event(), threading.Event()

    def work() -> Any:
        with beside():
            there.set()
            assert on.wait(60)
            return inner()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(work)
        assert there.wait(60)
        try:
            outer()
        finally:
            on.set()
        return found.result()


def test_random_numbers_are_not_set_back() -> None:
    def set_back() -> torch.Tensor:
        with kept(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(start)
        return torch.get_rng_state()

    torch.manual_seed(1)
    start = torch.get_rng_state()
    state = in_both(set_back, lambda: torch.rand(3))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(state, start)
    torch.set_rng_state(start)
    assert torch.equal(torch.get_rng_state(), start), "after it, states are set"


def test_other_threads_set_what_they_like(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", said.append)
    setter: Any = torch.cuda

    def outer() -> None:
        assert not is_beside()
        setter.set_rng_state("mine")
        torch.manual_seed(5)

    in_both(lambda: setter.set_rng_state("its"), outer)
    assert said == ["mine"]
    assert torch.initial_seed() == 5


def test_warnings_of_the_thread_are_its_own() -> None:
    def inner() -> list[str]:
        warnings.warn("hidden", stacklevel=1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("error")
            warnings.warn("recorded", stacklevel=1)
        return [str(w.message) for w in said]

    filters = [*warnings.filters]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = in_both(inner, lambda: warnings.warn("shown", stacklevel=1))
    assert found == ["recorded"]
    assert [str(w.message) for w in said] == ["shown"]
    assert [*warnings.filters] == filters


def test_blocks_that_end_in_another_order() -> None:
    block = warnings.catch_warnings()
    filters = [*warnings.filters]

    def outer() -> None:
        block.__enter__()
        warnings.simplefilter("error")

    in_both(lambda: None, outer)
    assert warnings.filters[0][0] == "error"
    block.__exit__(None, None, None)
    assert [*warnings.filters] == filters


def test_tracing_is_no_state_of_the_process() -> None:
    model, compiled = torch.nn.Linear(2, 2), torch.compile(lambda x: x + 1, backend="eager")
    call, x = torch.nn.Module.__call__, torch.ones(2)
    compiled(x)
    tracing, on = threading.Event(), threading.Event()

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tracing.set()
        assert on.wait(60)
        return model(x).sin(), y

    def trace() -> torch.fx.GraphModule:
        with beside():
            traced: torch.fx.GraphModule = make_fx(program)(x, x)
            return traced

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(trace)
        try:
            assert tracing.wait(60)
            assert torch.nn.Module.__call__ is call
            assert torch.equal(compiled(x), x + 1), "it raises where FX traces"
        finally:
            on.set()
        graph = found.result()
    assert "sin" in graph.code
    assert torch.equal(graph(x, x)[0], model(x).sin())
    assert torch.equal(graph(x, x)[1], x)


@pytest.mark.parametrize("block", [beside, tracing_alone])
def test_functions_are_traced_while_other_threads_call_modules(block: Any) -> None:
    model, compiled = torch.nn.Linear(2, 2), torch.compile(lambda x: x + 1, backend="eager")
    call, own, x = torch.nn.Module.__call__, torch.fx.Tracer.trace, torch.ones(2)
    compiled(x)
    tracing, on = threading.Event(), threading.Event()

    def program(x: torch.Tensor) -> torch.Tensor:
        tracing.set()
        assert on.wait(60)
        return x.sin()

    def trace() -> torch.fx.GraphModule:
        with block():
            return torch.fx.symbolic_trace(program)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(trace)
        try:
            assert tracing.wait(60)
            assert torch.nn.Module.__call__ is call
            assert torch.equal(model(x), torch.nn.functional.linear(x, model.weight, model.bias))
            assert torch.equal(compiled(x), x + 1)
        finally:
            on.set()
        graph = found.result()
    assert torch.equal(graph(x), x.sin())
    assert torch.fx.Tracer.trace is own


def test_blocks_of_two_threads_may_end_in_any_order() -> None:
    own = torch.fx.Tracer.trace
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with tracing_alone():
            entered.set()
            assert leave.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with tracing_alone():
            done = pool.submit(other)
            assert entered.wait(60)
        assert torch.fx.Tracer.trace is not own, "the other thread is still inside"
        leave.set()
        done.result()
    assert torch.fx.Tracer.trace is own

"""Calls that run in eager while their program is compiled behind (``on_miss="eager"``)."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Stage, Transform
from tj_core.internal import worker
from torch import nn

X = torch.arange(6.0).reshape(2, 3)


def ready() -> None:
    """Wait until what is compiled behind is there."""
    assert worker().wait(120)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    ready()


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def stopping() -> tuple[Transform, threading.Event, threading.Event]:
    """A transform at which a compilation waits; the events that it is there, and may go on."""
    there, on = threading.Event(), threading.Event()

    def stop(trace: Any, context: Any) -> Any:
        there.set()
        assert on.wait(60)
        return trace

    return Transform("stopping", stop, Stage.ACQUIRED), there, on


def test_the_program_takes_over_when_it_is_there() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    twin = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    twin.load_state_dict(net.state_dict())
    g = tj.jit(net, on_miss="eager")
    torch.manual_seed(0)
    got = [g(X) for _ in range(5)]
    ready()
    got += [g(X) for _ in range(5)]
    torch.manual_seed(0)
    same(got, [twin(X) for _ in range(10)])
    same(net.state_dict(), twin.state_dict())
    stats = tj.stats(g)
    assert (stats.calls, stats.eager, stats.hits, stats.entries) == (10, 5, 5, 1)


def test_steps_of_training() -> None:
    def losses(f: Callable[[Any], Any], net: nn.Module, pause: bool) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        found = []
        for step in range(6):
            loss = f(X + step).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
            if pause and step == 2:
                ready()
        return found

    net, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(net.state_dict())
    g = tj.jit(net, on_miss="eager")
    same(losses(g, net, True), losses(twin, twin, False))
    assert tj.stats(g).hits >= 3, "more, if the program is there before"


def test_writes_to_arguments_and_objects_happen_once() -> None:
    class Counter:
        calls = 0

    counter = Counter()

    def f(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        counter.calls += 1
        seen.append(len(seen))
        return x.add_(len(seen))

    g = tj.jit(f, on_miss="eager", dynamic=False)
    x, seen = torch.zeros(2), [0]
    for step in range(4):
        assert g(x, [0]) is x
        if step == 1:
            ready()
    assert counter.calls == 4
    same(x, torch.full((2,), 8.0))
    g(x, seen)
    seen.clear()  # the copy of the request has its item still
    ready()
    same(g(torch.zeros(2), [0]), torch.full((2,), 2.0))


def test_random_numbers_go_on_while_it_compiles() -> None:
    stop, there, on = stopping()
    g = tj.jit(lambda x: torch.rand_like(x) + x, on_miss="eager", transforms=[stop])
    torch.manual_seed(3)
    random.seed(3)
    got = [g(X), torch.rand(2)]
    assert there.wait(60)
    got += [torch.rand(3), torch.rand(4), random.random()]
    on.set()
    ready()
    got += [torch.rand(3), random.random(), g(X)]
    torch.manual_seed(3)
    random.seed(3)
    same(got[:4], [torch.rand_like(X) + X, torch.rand(2), torch.rand(3), torch.rand(4)])
    assert got[4] == random.random()
    same(got[5], torch.rand(3))
    assert got[6] == random.random()
    same(got[7], torch.rand_like(X) + X)
    assert tj.stats(g).hits == 1


def test_settings_of_the_process_are_left_alone() -> None:
    stop, there, on = stopping()
    g = tj.jit(lambda x: x * 2, on_miss="eager", transforms=[stop])
    before = torch.random.default_generator
    g(X)
    assert there.wait(60)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            warnings.warn("seen", UserWarning, stacklevel=1)
            on.set()
            ready()
            assert torch.get_default_dtype() is torch.float64
            assert torch.are_deterministic_algorithms_enabled()
            warnings.warn("seen as well", UserWarning, stacklevel=1)
        assert [str(w.message) for w in caught] == ["seen", "seen as well"]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    assert torch.random.default_generator is before
    assert all(type(pattern).__name__ != "_Silence" for _, pattern, *_ in warnings.filters)


def test_a_value_that_changes_between_trace_and_guards() -> None:
    class Net(nn.Module):
        scale = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor if self.training else x

    net = Net()
    net.factor = 2.0
    stop, there, on = stopping()
    g = tj.jit(net, on_miss="eager", transforms=[stop])
    g(X)
    assert there.wait(60)
    net.eval()  # the trace multiplies; guards would say that it is for evaluation
    on.set()
    ready()
    assert tj.stats(g).entries == 0
    for _ in range(2):
        for training in (False, True):
            net.train(training)
            same(g(X), X * 2 if training else X)
            ready()
            same(g(X), X * 2 if training else X)
    assert tj.stats(g).entries == 2
    assert not tj.stats(g).fallbacks


def test_a_parameter_that_is_frozen_while_it_compiles() -> None:
    net = nn.Linear(3, 2)
    stop, there, on = stopping()
    g = tj.jit(net, on_miss="eager", transforms=[stop])
    g(X)
    assert there.wait(60)
    net.weight.requires_grad_(False)
    on.set()
    ready()
    assert tj.stats(g).entries == 0
    for _ in range(2):
        out = g(X)
        ready()
    (gradient,) = torch.autograd.grad(out.sum(), net.bias)
    same(gradient, torch.full((2,), 2.0))
    assert tj.stats(g).entries == 1


def test_weights_that_are_loaded_while_it_compiles() -> None:
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    stop, there, on = stopping()
    g = tj.jit(net, on_miss="eager", transforms=[stop])
    same(g(X), net(X))
    assert there.wait(60)
    g.load_state_dict(other.state_dict())
    same(g(X), other(X))
    on.set()
    ready()
    same(g(X), other(X))
    g.load_state_dict({k: v + 1 for k, v in other.state_dict().items()})
    same(g(X), net(X))
    assert tj.stats(g).hits == 2
    assert tj.stats(g).entries == 1


def test_what_always_changes_is_left_to_eager() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.step

    net = Net()

    def changing(trace: Any, context: Any) -> Any:
        net.step += 1
        return trace

    g = tj.jit(net, on_miss="eager", transforms=[Transform("changing", changing, Stage.ACQUIRED)])
    for _ in range(8):
        same(g(X), X + net.step)
        ready()
    with pytest.warns(tj.TjWarning, match=r"step.*changed each time while"):
        same(g(X), X + net.step)
    same(g(X), X + net.step)
    assert tj.stats(g).entries == 0


def test_an_attribute_that_hides_that_of_the_class_from_now_on() -> None:
    class Net(nn.Module):
        scale = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    net = Net()
    stop, there, on = stopping()
    g = tj.jit(net, on_miss="eager", transforms=[stop])
    same(g(X), X * 2)
    assert there.wait(60)
    net.scale = 3
    on.set()
    ready()
    assert tj.stats(g).entries == 0
    for _ in range(2):
        same(g(X), X * 3)
        ready()
    assert tj.stats(g).hits == 1


def failing(trace: Any, context: Any) -> Any:
    raise ValueError("a pass fails")


def test_an_error_behind_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    g = tj.jit(
        lambda x: x + 1,
        on_miss="eager",
        strict=False,
        transforms=[Transform("failing", failing, Stage.ACQUIRED)],
    )
    same(g(X), X + 1)
    ready()
    with pytest.warns(tj.TjWarning, match="a pass fails") as caught:
        same(g(X), X + 1)
        same(g(X), X + 1)
    assert len(caught) == 1
    ready()
    assert tj.stats(g).entries == 0


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def test_a_graph_break_is_one_warning_with_the_line() -> None:
    g = tj.jit(broken, on_miss="eager", fullgraph=False)
    same(g(X), (X + 1) * 2)
    ready()
    with pytest.warns(tj.TjWarning, match=r"(?s)graph break.*runs in eager.*test_background") as w:
        same([g(X), g(X)], [(X + 1) * 2] * 2)
    assert len(w) == 1
    assert tj.stats(g).entries == 0


def test_fullgraph_raises_in_the_next_call() -> None:
    g = tj.jit(broken, on_miss="eager", fullgraph=True)
    same(g(X), (X + 1) * 2)
    ready()
    with pytest.raises(tj.TjError, match="graph break"):
        g(X)


def test_a_call_that_raises_is_not_compiled_for() -> None:
    g = tj.jit(lambda x: x @ x, on_miss="eager")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        g(X)
    ready()
    assert not tj.stats(g).fallbacks
    same(g(torch.eye(2)), torch.eye(2))
    ready()
    assert tj.stats(g).entries == 1


def test_modes_of_the_call() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    g, w = tj.jit(f, on_miss="eager"), torch.ones(3, 3, requires_grad=True)
    modes = [
        torch.enable_grad,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    ]
    for mode in modes:
        with mode():
            g(X, w)
        ready()
    assert tj.stats(g).entries == len(modes)
    for mode in modes:
        with mode():
            got, expected = g(X, w), f(X, w)
        same(got, expected)
        assert (got.requires_grad, got.is_inference(), got.dtype) == (
            expected.requires_grad,
            expected.is_inference(),
            expected.dtype,
        )
    assert tj.stats(g).hits == len(modes)


def test_autocast_of_the_jit_call() -> None:
    session = tj.Session(plugins=["torch", "autocast"])
    g = tj.jit(lambda x: x @ x.T, on_miss="eager", autocast=torch.bfloat16, session=session)
    assert g(X).dtype is torch.bfloat16
    ready()
    assert g(X).dtype is torch.bfloat16
    assert tj.stats(g).hits == 1


def test_a_default_device_is_no_program_behind() -> None:
    g = tj.jit(lambda x: x + torch.ones(3), on_miss="eager", fullgraph=False)
    with torch.device("cpu"), pytest.warns(tj.TjWarning, match="runs in eager"):
        same(g(X), X + 1)
    same(g(X), X + 1)
    ready()
    assert tj.stats(g).entries == 1


def test_threads_and_asyncio() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    g = tj.jit(net, on_miss="eager", dynamic=False)
    xs = [torch.randn(1 + i % 3, 3) for i in range(60)]
    expected = [net(x).detach() for x in xs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            for got, wanted in zip(pool.map(g, xs), expected, strict=True):
                same(got.detach(), wanted)
            ready()

    async def ask(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return g(x)

    async def all_of_them() -> list[torch.Tensor]:
        return await asyncio.gather(*map(ask, xs))

    same([y.detach() for y in asyncio.run(all_of_them())], expected)
    stats = tj.stats(g)
    assert stats.entries == 3
    assert stats.calls == 5 * len(xs)


def test_arguments_are_let_go() -> None:
    g = tj.jit(lambda x: x * 3, on_miss="eager")
    x = torch.randn(3)
    storage = weakref.ref(x)
    g(x)
    ready()
    del x
    assert storage() is None


def test_a_program_that_nobody_has_any_more_is_not_compiled() -> None:
    stop, there, on = stopping()
    first = tj.jit(lambda x: x + 1, on_miss="eager", transforms=[stop])
    second = tj.jit(lambda x: x + 2, on_miss="eager")
    first(X)
    assert there.wait(60)
    second(X)
    state = weakref.ref(second.__tj__)
    del second
    gc.collect()
    assert state() is None
    on.set()


def test_a_tensor_subclass_runs_in_eager() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    g = tj.jit(lambda x: x * 2, on_miss="eager", fullgraph=False)
    x = TwoTensor(X, X + 1)
    with pytest.warns(tj.TjWarning, match="subclass cannot be compiled for behind"):
        got = g(x)
    same((got.a, got.b), (X * 2, (X + 1) * 2))


@pytest.mark.parametrize("frontend", ["fx", "dynamo_hook"])
def test_frontends_that_compile_in_calls(frontend: str) -> None:
    program = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(tj.TjError, match=f"needs the frontend dynamo: {frontend}"):
        tj.jit(program, frontend=frontend, on_miss="eager")


def test_a_stance_that_forbids_programs() -> None:
    g = tj.jit(lambda x: x + 1, on_miss="eager")
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError):
        g(X)
    same(g(X), X + 1)


def test_the_value_is_checked() -> None:
    with pytest.raises(tj.TjError, match='on_miss must be "compile" or "eager"'):
        tj.jit(lambda x: x, on_miss="later")

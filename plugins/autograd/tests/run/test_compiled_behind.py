"""Kernels that are compiled behind calls: forwards and backwards belong together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_conformance.fuser import can_fuse
from tj_core.extend import Claim, Executor, Fusion, RuleTable, Symbol, hookimpl
from tj_core.internal import worker
from tj_core.testing.fusing import as_text
from torch import nn

if TYPE_CHECKING:
    from tj_core.extend import Fused, FusionRegion

X = torch.linspace(-1, 2, 6).reshape(2, 3)
ROWS = torch.linspace(-1, 2, 16 * 128).reshape(16, 128)
"""So many that the exponentials in `peak` are computed again in its backward."""


class RoundingPlugin:
    """A fuser that rounds exponentials up, and is done when ``go`` is set.

    ``there`` is set when it waits for that. ``forward`` and ``backward`` count runs of kernels.
    """

    tj_name = "rounding"

    def __init__(self) -> None:
        self.there, self.go = threading.Event(), threading.Event()
        self.forward = self.backward = 0

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        fusion = Fusion(can_fuse, self.fuse, minimum=1, together=self.together)
        return (Executor("rounding", claims, fusion=fusion),)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Wait at the end, where compilers of several regions run, and no lock is held."""
        yield
        self.there.set()
        assert self.go.wait(60)

    def fuse(self, region: FusionRegion) -> Fused:
        mine = {
            Symbol.parse("aten.exp.default"): lambda x: torch.nextafter(torch.exp(x), 2 * x.exp())
        }
        made = as_text(replace(region, implementations={**region.implementations, **mine}))
        return replace(made, function=self.counting(made.function, region.backward), kept="")

    def counting(self, function: Callable[..., Any], backward: bool) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.backward += backward
            self.forward += not backward
            return function(*args)

        return run


@pytest.fixture
def slow() -> Iterator[RoundingPlugin]:
    made = RoundingPlugin()
    yield made
    made.go.set()
    assert worker().wait(60)


def behind(f: Any, plugin: Any, **options: Any) -> Any:
    session = tj.Session([plugin, "autograd", "torch"])
    return tj.jit(f, session=session, compile="background", **options)


def put_in(g: Any, plugin: RoundingPlugin) -> None:
    plugin.go.set()
    assert tj.wait(g, 60)


def peak(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).exp().amax(1)


def leaf() -> torch.Tensor:
    return ROWS.clone().requires_grad_()


def gradient(f: Callable[..., Any], x: torch.Tensor, **more: Any) -> torch.Tensor:
    (found,) = torch.autograd.grad(f(x).sum(), x, **more)
    return found


def test_the_backward_of_a_plain_forward_is_plain(slow: RoundingPlugin) -> None:
    g, x, y = behind(peak, slow), leaf(), leaf()
    first = g(x).sum()
    put_in(g, slow)
    second = g(y).sum()
    assert slow.forward
    assert not slow.backward
    expected = gradient(peak, leaf())
    first.backward()
    torch.testing.assert_close(x.grad, expected, rtol=0, atol=0)
    assert not slow.backward
    second.backward()
    assert slow.backward
    torch.testing.assert_close(y.grad, expected)


def test_steps_while_and_after(slow: RoundingPlugin) -> None:
    net, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(net.state_dict())

    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x).exp().amax(1).square().mean()

    g = behind(lambda x: loss(net, x), slow)
    for step in range(6):
        for model, f in ((net, g), (twin, lambda x: loss(twin, x))):
            model.zero_grad()
            f(X + step / 7).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
        for got, wanted in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(got, wanted)
        assert bool(slow.backward) == (step > 2)
        if step == 2:
            put_in(g, slow)


def test_a_backward_that_nobody_has_asked_for_is_there(slow: RoundingPlugin) -> None:
    g = behind(peak, slow)
    g(leaf())
    put_in(g, slow)
    x = leaf()
    loss = g(x)
    before = tj.stats(g).seconds.copy()
    loss.backward(torch.ones(16))
    assert slow.backward
    assert tj.stats(g).seconds == before, "nothing was compiled in the backward"


def test_a_backward_for_tangents_of_another_layout_is_there(slow: RoundingPlugin) -> None:
    g = behind(peak, slow)
    for tangent in (torch.ones(16), torch.ones(()).expand(16)):
        g(leaf()).backward(tangent)
    put_in(g, slow)
    x = leaf()
    before = tj.stats(g).seconds.copy()
    g(x).backward(torch.ones(()).expand(16))
    assert slow.backward
    assert tj.stats(g).seconds == before
    torch.testing.assert_close(x.grad, gradient(peak, leaf()))


def test_second_derivatives_while_and_after(slow: RoundingPlugin) -> None:
    def second(f: Callable[..., Any]) -> torch.Tensor:
        x = leaf()
        return gradient(lambda x: gradient(f, x, create_graph=True), x)

    g = behind(lambda x: (x * 2).exp(), slow)
    expected = second(lambda x: (x * 2).exp())
    torch.testing.assert_close(second(g), expected)
    put_in(g, slow)
    torch.testing.assert_close(second(g), expected)


def test_random_numbers_are_those_of_eager_whoever_runs(slow: RoundingPlugin) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x.exp() * 2, 0.5) + torch.rand_like(x) * 3

    g = behind(f, slow)
    for step in range(4):
        x, y = leaf(), leaf()
        torch.manual_seed(step)
        g(x).sum().backward()
        after = torch.rand(1)
        torch.manual_seed(step)
        f(y).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        assert torch.equal(after, torch.rand(1))
        if step == 1:
            put_in(g, slow)
    assert slow.forward


def test_writes_happen_once(slow: RoundingPlugin) -> None:
    def f(x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(len(seen))
        return x.mul_(2).add_(1).exp()

    g = behind(f, slow, dynamic=False)
    x, y = X.clone(), X.clone()
    for step in range(4):
        torch.testing.assert_close(g(x, [0]), f(y, [0]))
        assert torch.equal(x, y)
        if step == 1:
            put_in(g, slow)
    assert slow.forward


def test_symbolic_sizes(slow: RoundingPlugin) -> None:
    g = behind(peak, slow, dynamic=True)
    for rows in (2, 3):
        torch.testing.assert_close(g(X.new_ones(rows, 3)), peak(X.new_ones(rows, 3)))
    put_in(g, slow)
    torch.testing.assert_close(g(X.new_ones(5, 3)), peak(X.new_ones(5, 3)))
    assert slow.forward
    assert tj.stats(g).entries == 1


def test_another_program_is_compiled_meanwhile(slow: RoundingPlugin) -> None:
    g = behind(peak, slow)
    g(X)
    assert slow.there.wait(60)
    other = tj.jit(lambda x: x.sin() + 1, session=tj.Session(["torch"]))
    assert torch.equal(other(X), X.sin() + 1)
    assert tj.stats(g).region_waiting == 1
    put_in(g, slow)


def test_ahead_of_calls_all_is_there(slow: RoundingPlugin) -> None:
    slow.go.set()
    g = behind(peak, slow)
    with torch.no_grad():
        g.compile_for(X)
        assert tj.stats(g).region_waiting == 0
        g(X)
    assert slow.forward
    assert (tj.stats(g).hits, tj.stats(g).misses) == (1, 0)


def test_by_torch_compile(slow: RoundingPlugin) -> None:
    plugins = [slow, "autograd", "torch"]
    options = {"plugins": plugins, "compile": "background"}
    g = torch.compile(peak, backend="tj", options=options)
    x = leaf()
    g(x).sum().backward()
    torch.testing.assert_close(x.grad, gradient(peak, leaf()))
    put_in(g, slow)
    torch.testing.assert_close(gradient(g, leaf()), gradient(peak, leaf()))
    assert slow.forward
    assert slow.backward


def test_parts_between_graph_breaks(slow: RoundingPlugin) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.exp() * 2
        torch._dynamo.graph_break()
        return y.exp() + 1

    g = behind(f, slow)
    with pytest.warns(tj.TjWarning, match="graph break"):
        torch.testing.assert_close(g(X), f(X))
    assert tj.stats(g).region_waiting == 2
    put_in(g, slow)
    torch.testing.assert_close(g(X), f(X))
    assert tj.stats(g).region_waiting == 0
    assert slow.forward


def test_with_programs_that_are_compiled_behind(slow: RoundingPlugin) -> None:
    g = behind(peak, slow, on_miss="eager")
    g(X)
    put_in(g, slow)
    torch.testing.assert_close(g(X), peak(X))
    assert slow.forward
    assert (tj.stats(g).eager, tj.stats(g).hits) == (1, 1)

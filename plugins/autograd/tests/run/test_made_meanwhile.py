"""Backwards that are made while another thread finishes the forward's kernels (`Fusion.begin`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_conformance.fuser import can_fuse
from tj_core.extend import Claim, Executor, Fusion, PluginError, RuleTable, hookimpl
from tj_core.testing.fusing import as_text
from torch import nn

if TYPE_CHECKING:
    from tj_core.extend import Fused, FusionRegion


class BeginningPlugin:
    """A fuser that goes on after `begin`; ``events`` are what it does, in order.

    ``fails`` is what compilation of a backward raises, ``breaks`` what a first call of a kernel
    does.
    """

    tj_name = "beginning"

    def __init__(
        self, fails: Exception | None = None, breaks: Exception | None = None, begin: bool = True
    ) -> None:
        self.events: list[str] = []
        self.fails, self.breaks, self.begin = fails, breaks, begin

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        begin = self.begun if self.begin else None
        fusion = Fusion(can_fuse, self.fuse, minimum=1, together=self.together, begin=begin)
        return (Executor("beginning", claims, fusion=fusion),)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        yield
        self.events.append("compiled")

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        yield
        self.events.append("begun")

    def fuse(self, region: FusionRegion) -> Fused:
        which = "backward" if region.backward else "forward"
        self.events.append(which)
        if self.fails is not None and region.backward:
            raise self.fails
        made = as_text(region)
        return type(made)(self.noting(made.function, f"run {which}"), source=made.source)

    def noting(self, function: Callable[..., Any], event: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if self.breaks is not None:
                raise self.breaks
            if self.events[-1:] != [event]:
                self.events.append(event)
            return function(*args)

        return run


def jitted(
    plugin: BeginningPlugin, f: Callable[..., Any] | None = None, **config: Any
) -> Callable[..., Any]:
    overrides = {"cache_dir": "none", "strict": False, **config}
    session = tj.Session([plugin, "autograd", "torch"], overrides=overrides)
    return tj.jit(f or program, session=session)


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).exp().sum()


def assert_gradient(x: torch.Tensor) -> None:
    z = leaf()
    program(z).backward()
    torch.testing.assert_close(x.grad, z.grad)


def leaf() -> torch.Tensor:
    return torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()


def test_the_backward_is_made_before_the_forward_runs() -> None:
    plugin = BeginningPlugin()
    g, x = jitted(plugin), leaf()
    y = g(x)
    assert plugin.events == ["forward", "begun", "backward", "begun", "run forward"]
    before = tj.stats(g).seconds.copy()
    y.backward()
    assert plugin.events[-1] == "run backward"
    assert tj.stats(g).seconds == before, "nothing was compiled in the backward"
    assert_gradient(x)


def test_results_beside_a_loss_have_no_tangents() -> None:
    plugin = BeginningPlugin()
    x = leaf()
    loss, _ = jitted(plugin, lambda x: (program(x), x.sin() * 3))(x)
    before = [*plugin.events]
    loss.backward()
    assert plugin.events == [*before, "run backward"]
    assert_gradient(x)


def test_results_of_a_module_have_contiguous_tangents() -> None:
    plugin = BeginningPlugin()
    g = jitted(plugin, nn.Sequential(nn.Linear(3, 3), nn.Softplus()))
    y = g(leaf())
    before = [*plugin.events]
    assert before.count("backward") == 1
    y.backward(torch.ones(2, 3))
    assert plugin.events == [*before, "run backward"]


def test_nothing_tells_of_other_results_if_they_will_have_tangents() -> None:
    plugin = BeginningPlugin()
    y = jitted(plugin, lambda x: (x.sin() * 2).exp())(leaf())
    assert plugin.events == ["forward", "begun", "run forward"]
    y.backward(torch.ones(()).expand(2, 3))
    assert plugin.events[3:] == ["backward", "begun", "run backward"]


def test_an_executor_that_finishes_at_once_makes_no_backward() -> None:
    plugin = BeginningPlugin(begin=False)
    jitted(plugin)(leaf())
    assert plugin.events == ["forward", "compiled", "run forward"]


def test_a_program_without_gradients_has_none() -> None:
    plugin = BeginningPlugin()
    with torch.no_grad():
        jitted(plugin)(leaf())
    assert plugin.events == ["forward", "begun", "run forward"]


def test_nothing_goes_on_after_a_compilation_behind_calls() -> None:
    plugin = BeginningPlugin()
    g = jitted(plugin, on_miss="eager")
    g(leaf())
    assert tj.wait(g, 60)
    assert plugin.events == ["forward", "compiled"]


def test_a_forward_that_is_known_makes_no_backward() -> None:
    plugin = BeginningPlugin()
    session = tj.Session([plugin, "autograd", "torch"], overrides={"cache_dir": "none"})
    tj.jit(program, session=session)(leaf())
    plugin.events.clear()
    tj.jit(lambda x: program(x), session=session)(leaf())
    assert plugin.events == ["run forward"]


@pytest.mark.parametrize("strict", [False, True])
def test_what_fails_in_a_backward_is_said(strict: bool) -> None:
    g, x = jitted(BeginningPlugin(fails=ValueError("no such loop")), strict=strict), leaf()
    if strict:
        y = g(x)
        with pytest.raises(PluginError, match="no such loop"):
            y.backward()
        return
    with pytest.warns(tj.TjWarning, match=r"beginning.* failed on region .*no such loop") as said:
        y = g(x)
        y.backward()
    assert len(said) == 1
    assert_gradient(x)


def test_a_kernel_that_fails_in_its_first_call_is_left() -> None:
    g, x = jitted(BeginningPlugin(breaks=ValueError("no compiler"))), leaf()
    with pytest.warns(tj.TjWarning, match=r"failed on region .*no compiler") as said:
        g(x).backward()
    assert len(said) == 2, "the forward's and the backward's"
    assert_gradient(x)

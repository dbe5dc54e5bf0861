"""What an executor's kernels return is held against the trace when a program first runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Claim, Executor, Pair, PluginError, RuleTable, hookimpl


class Acme:
    tj_name = "acme"

    def __init__(self, **claims: Claim) -> None:
        self.claims = claims

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        table: RuleTable[Claim] = RuleTable("claim")
        for name, claim in self.claims.items():
            table.set(f"torch.{name}", claim)
        return (Executor("acme", table),)


def jitted(f: Callable[..., Any], **claims: Claim) -> Any:
    return tj.jit(f, plugins=[Acme(**claims), "torch", "autograd"])


WRONG = {
    "dtype": (lambda x: x.exp().double(), "result 0 has dtype f64, not f32"),
    "shape": (lambda x: x.exp()[:1], r"result 0 has shape \(1, 3\), not \(2, 3\)"),
    "strides": (lambda x: x.exp().t().contiguous().t(), r"strides \(1, 2\), not \(3, 1\)"),
    "kind": (lambda x: None, "result 0 is a NoneType, not a plain tensor"),
    "a tuple": (lambda x: (x.exp(), x), "result 0 is a tuple, not a plain tensor"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_kernel_that_returns_something_else_is_named(what: str) -> None:
    kernel, message = WRONG[what]
    program = jitted(lambda x: x.exp() + 1, exp=Claim(kernel))
    for _ in range(2):  # it is not believed the second time either
        with pytest.raises(
            PluginError, match=f"executor 'acme' ran torch.exp for .*{message}"
        ) as e:
            program(torch.rand(2, 3))
        assert e.value.source is not None
        assert "x.exp() + 1" in e.value.source.text


def test_a_kernel_with_several_results_returns_as_many() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        mean, variance = torch.var_mean(x)
        return mean + variance

    for kernel, shown in (
        (lambda x: x.mean(), "one value, a Tensor"),
        (lambda x: (x,), "1 values"),
    ):
        with pytest.raises(PluginError, match=f"it returned {shown}, not 2 values"):
            jitted(program, var_mean=Claim(kernel))(torch.rand(3))


def test_strides_that_lead_nowhere_are_anybodys() -> None:
    kernel = Claim(lambda x: x.exp().as_strided(x.shape, (7, 1)))
    assert jitted(lambda x: x.exp(), exp=kernel)(torch.zeros(1, 3)).stride() == (7, 1)
    empty = Claim(lambda x: x.new_empty(0, 3).as_strided((0, 3), (9, 9)))
    assert jitted(lambda x: x.exp(), exp=empty)(torch.zeros(0, 3)).shape == (0, 3)


def test_each_call_is_compared_once_and_then_runs_directly() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    program = jitted(lambda x, y: x.exp() + y.exp(), exp=Claim(kernel))
    x, y = torch.rand(2), torch.rand(2)
    torch.testing.assert_close(program(x, y), x.exp() + y.exp())
    bound = program.__tj__.last.compilation.program.function.__globals__
    assert [v for k, v in bound.items() if k.startswith("acme")] == [kernel, kernel]
    torch.testing.assert_close(program(x, y), x.exp() + y.exp())


def test_sizes_that_are_symbols_are_any_number() -> None:
    program = tj.jit(lambda x: x.exp(), plugins=[Acme(exp=Claim(torch.exp)), "torch"], dynamic=True)
    for n in (3, 5):
        assert program(torch.rand(n, 2)).shape == (n, 2)


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_both_halves_of_a_pair_are_compared(half: str) -> None:
    def forward(x: torch.Tensor) -> Any:
        y = x.exp()
        return (y.double() if half == "forward" else y), (y,)

    def backward(saved: Any, grad: torch.Tensor) -> Any:
        gradient = grad * saved[0]
        return (gradient.double() if half == "backward" else gradient,)

    def right_forward(x: torch.Tensor) -> Any:
        return x.exp(), (x.exp(),)

    def right_backward(saved: Any, grad: torch.Tensor) -> Any:
        return (grad * saved[0],)

    pair = Pair(forward, backward, meta=(right_forward, right_backward))
    program = jitted(lambda x: x.exp().sum(), exp=Claim(torch.exp, pair=pair))
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(PluginError, match=r"'acme' ran torch\.exp.*has dtype f64, not f32"):
        program(x).backward()

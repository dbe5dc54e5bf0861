"""The executor's product in programs: forward, backward, beside others in both orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Claim, Executor, RuleTable, hookimpl
from tj_example_subclass import kernels
from tj_example_subclass.tensor import Precise

WHOLE = "example_subclass.Precise.torch.mul"
OTHERS = ("torch", "autograd", "subclass")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    return


class Plain:
    """An executor of a third party without support for subclasses: products of plain tensors."""

    tj_name = "plain"

    def __init__(self) -> None:
        self.seen: list[type] = []

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("torch.mul", Claim(self.run))
        return (Executor("plain", claims),)

    def run(self, x: Any, y: Any) -> Any:
        self.seen += [type(x), type(y)]
        return torch.mul(x, y)


def precise(*shape: int) -> Any:
    return Precise.of(torch.rand(*shape, dtype=torch.float64) + 0.5).requires_grad_()


def program(x: Any, y: Any) -> Any:
    return (x * y).sin()


def run(f: Any, *shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """The result and the gradients of ``f``, as float64."""
    torch.manual_seed(0)
    args = [precise(*shape) for shape in shapes]
    result = f(*args)
    result.sum().backward()
    assert {type(t) for t in (result, *(x.grad for x in args))} == {Precise}
    return result.detach().whole(), *(x.grad.whole() for x in args)


def close(mine: Any, eagers: Any) -> None:
    torch.testing.assert_close(mine, eagers, rtol=1e-12, atol=1e-12)


def names(jitted: Any, which: str = "forward") -> list[str]:
    return [call.symbol.qualname for call in tj.last_trace(jitted, which).calls]


def test_a_product_is_precise() -> None:
    x, y = (torch.rand(1000, dtype=torch.float64) for _ in range(2))
    found = kernels.product(Precise.of(x), Precise.of(y))
    torch.testing.assert_close(found.whole(), x * y, rtol=2e-13, atol=0)


def test_it_is_found_and_runs_forward_and_backward() -> None:
    jitted = tj.jit(program, plugins=["example_subclass", *OTHERS])
    close(run(jitted, (3,), (3,)), run(program, (3,), (3,)))
    assert f"{WHOLE}.forward" in names(jitted)
    assert "aten.sin.default" in names(jitted)
    assert f"{WHOLE}.backward" in names(jitted, "backward")


@pytest.mark.parametrize("first", [True, False])
def test_a_claim_for_plain_tensors_never_sees_one(first: bool) -> None:
    plain = Plain()
    mine = ["example_subclass", plain] if first else [plain, "example_subclass"]
    jitted = tj.jit(lambda x, y: program(x, y) * (y.high * 2.0), plugins=[*mine, *OTHERS])
    x, y = (precise(3).detach() for _ in range(2))
    close(jitted(x, y).whole(), (program(x, y) * (y.high * 2.0)).whole())
    assert set(plain.seen) == {torch.Tensor, float}
    assert WHOLE in names(jitted)


@pytest.mark.parametrize("first", [True, False])
def test_gradients_in_both_orders(first: bool) -> None:
    plain = Plain()
    mine = ["example_subclass", plain] if first else [plain, "example_subclass"]
    jitted = tj.jit(program, plugins=[*mine, *OTHERS])
    close(run(jitted, (3,), (3,)), run(program, (3,), (3,)))
    assert plain.seen == []
    assert f"{WHOLE}.forward" in names(jitted)


def test_what_it_declines_is_dense() -> None:
    jitted = tj.jit(program, plugins=["example_subclass", *OTHERS])
    close(run(jitted, (2, 3), (3,)), run(program, (2, 3), (3,)))
    assert not any("mul" in name for name in names(jitted) if not name.startswith("aten."))
    assert "aten.mul.Tensor" in names(jitted)

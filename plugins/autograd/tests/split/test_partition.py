"""Values saved for the backward, values computed again, and the tags that decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.training import trained
from tj_core.errors import TagError
from tj_core.extend import RuleTable, hookimpl
from torch.nn import functional as F

X = torch.randn(64, 64)


def saved(jitted: Any) -> set[str]:
    """The names of the values that the forward saves."""
    return {p.name for p in tj.last_trace(jitted, stage="SPLIT").outputs[2]}


def again(jitted: Any) -> list[str]:
    """The forward's operations that the backward runs again."""
    calls = tj.last_trace(jitted, "backward", stage="SPLIT").calls
    return [
        c.symbol.qualname
        for c in calls
        if not c.symbol.qualname.endswith((".backward", "add.Tensor"))
    ]


def bytes_kept(f: Callable[..., Any], *args: torch.Tensor) -> int:
    """Bytes of the tensors that PyTorch is asked to keep for the backward."""
    leaves = [a.clone().requires_grad_() for a in args]
    mine = {a.untyped_storage().data_ptr() for a in leaves}
    seen: dict[int, int] = {}
    alive = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.untyped_storage().data_ptr() not in mine:
            seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            alive.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = f(*leaves)
    out.backward()
    return sum(seen.values())


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x.sin().exp().cos() * 2).tanh().sum()


def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.silu(x @ w) * torch.sigmoid(x @ w.t())
    return F.gelu(h @ w).sum()


@pytest.mark.parametrize("f", [chain, mlp])
def test_no_more_is_saved_than_eager_or_aot_eager_save(f: Callable[..., Any]) -> None:
    args = (X,) if f is chain else (X, torch.randn(64, 64))
    trained(f, *args)
    mine = bytes_kept(tj.jit(f), *args)
    assert mine <= bytes_kept(f, *args)
    torch._dynamo.reset()
    assert mine <= bytes_kept(torch.compile(f, backend="aot_eager"), *args)


def test_elementwise_chains_run_again() -> None:
    jitted = trained(chain, X)
    assert again(jitted)
    assert set(again(jitted)) <= {
        "torch.sin",
        "torch.exp",
        "torch.cos",
        "torch.mul",
        "torch.tanh",
    }


def test_products_and_random_numbers_do_not() -> None:
    jitted = trained(lambda x, w: F.dropout(F.silu(x @ w), 0.5).exp().sum(), X, torch.randn(64, 64))
    assert not {n for n in again(jitted) if "matmul" in n or "dropout" in n}


def test_a_saved_value_is_saved() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = tj.tag(x.sin(), "SAVE")
        return (y.exp() * y).sum()

    jitted = trained(f, X)
    assert "y" in saved(jitted)
    assert "torch.sin" not in again(jitted)


def test_a_value_to_compute_again_is_computed_again() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = tj.tag(x @ w, "RECOMPUTE")
        return (y * y.exp()).sum()

    jitted = trained(f, X, torch.randn(64, 64))
    assert "y" not in saved(jitted)
    assert "torch.matmul" in again(jitted)


def test_a_value_not_to_save_is_made_of_others() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = tj.tag(x.sin(), "DONT_SAVE_FOR_BACKWARD")
        return (y * y.exp()).sum()

    jitted = trained(f, X)
    assert "y" not in saved(jitted)
    assert "torch.sin" in again(jitted)


def test_what_is_written_to_later_is_not_saved_to_make_others_of() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float64)  # twice the bytes of x
        y = (wide * wide).sum()
        x.mul_(2)
        return y

    grads = []
    for fn in (jitted := tj.jit(f), f):
        leaf = X.clone().requires_grad_()
        fn(leaf * 1).backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)
    assert tj.explain(jitted).declined == ()
    assert "x" not in saved(jitted)


def test_an_input_is_saved_and_not_its_view() -> None:
    """PyTorch says less of a saved view whose base was written."""

    def f(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (x.sin() + b.view(-1, 1)).exp().sum()

    jitted = tj.jit(f)
    x, b = X.clone().requires_grad_(), torch.rand(len(X), requires_grad=True)
    y = jitted(x, b)
    assert "b" in saved(jitted)
    with torch.no_grad():
        b.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_value_that_can_neither_be_saved_nor_made_again() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        noise = tj.tag(torch.rand_like(x), "DONT_SAVE_FOR_BACKWARD")
        return (x * noise).sum()

    with pytest.raises(TagError, match="must not be saved") as caught:
        tj.jit(f)(X.clone().requires_grad_())
    assert "test_partition.py" in str(caught.value)


class Says:
    """A plugin with rules for table ``recompute``."""

    tj_name = "says"

    def __init__(self, cheap: bool) -> None:
        self.cheap = cheap

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[bool], ...]:
        table: RuleTable[bool] = RuleTable("recompute")
        table.set("torch.sin", self.cheap)
        table.set("aten.sin.default", self.cheap)
        return (table,)


@pytest.mark.parametrize("cheap", [True, False])
def test_a_plugin_says_what_is_cheap_to_run_again(cheap: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).sin() * x).exp().sum()

    jitted = tj.jit(f, plugins=[Says(cheap), "torch", "autograd"])
    jitted(torch.ones(4, requires_grad=True)).backward()
    assert ("torch.sin" in again(jitted)) is cheap

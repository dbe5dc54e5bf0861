"""`torch.utils.checkpoint` through traces: eager's gradients and eager's random numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.rules import RuleTable
from tj_core.host.hookspecs import hookimpl
from tj_core.ir.proxy import TensorProxy
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor], Tensor]
checkpointed = functools.partial(checkpoint, use_reentrant=False)


def plain(x: Tensor, w: Tensor) -> Tensor:
    return checkpointed(lambda a: (a @ w).sin() @ w, x).sum()


def dropout(x: Tensor, w: Tensor) -> Tensor:
    return checkpointed(lambda a: F.dropout((a @ w).sin(), 0.5), x).sum()


def draws_everywhere(x: Tensor, w: Tensor) -> Tensor:
    """Draws before, in, between and after two regions."""

    def region(a: Tensor) -> Tensor:
        return F.dropout(F.dropout(a @ w, 0.5).sin(), 0.3)

    y = checkpointed(region, F.dropout(x, 0.1))
    y = checkpointed(region, y * torch.rand(()))
    return (y * torch.rand_like(y)).sum()


def nested(x: Tensor, w: Tensor) -> Tensor:
    def inner(a: Tensor) -> Tensor:
        return F.dropout(a @ w, 0.5).cos()

    def outer(a: Tensor) -> Tensor:
        return checkpointed(inner, F.dropout(a, 0.5).exp()) @ w

    return checkpointed(outer, x).sum()


def noise(x: Tensor, w: Tensor) -> Tensor:
    """Numbers drawn without an argument, and one that nothing depends on."""

    def region(a: Tensor) -> Tensor:
        torch.rand(2)
        return (a @ w + torch.randn(3, 4)).tanh() * torch.rand_like(a)

    return checkpointed(region, x).sum()


def reentrant(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(lambda a, b: F.dropout(a @ b, 0.5).sin(), x, w, use_reentrant=True).sum()


def attention(x: Tensor, w: Tensor) -> Tensor:
    def region(a: Tensor) -> Tensor:
        q = (a @ w).view(1, 1, 3, 4)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).sin()

    return checkpointed(region, x).sum()


def branch(x: Tensor, w: Tensor) -> Tensor:
    def region(a: Tensor) -> Tensor:
        return torch.cond(a.sum() > 0, lambda b: b.sin() @ w, lambda b: b.cos() @ w, (a @ w,))

    return checkpointed(region, x).sum()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.dropout(x * x, 0.5)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * g * x


def function(x: Tensor, w: Tensor) -> Tensor:
    return checkpointed(lambda a: Square.apply(a @ w).sin(), x).sum()


ALL = [
    plain,
    dropout,
    draws_everywhere,
    nested,
    noise,
    reentrant,
    attention,
    branch,
]
if torch.__version__ >= (2, 11):
    ALL.append(function)  # which PyTorch 2.10 runs itself, and the checkpoint with it


def run(fn: Any) -> list[Tensor]:
    """The result, numbers drawn after it and after its backward, and the gradients."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    torch.manual_seed(1)
    out = fn(x, w)
    drawn = torch.rand(2)
    out.backward()
    return [out, drawn, x.grad, w.grad, torch.rand(2)]


def assert_equal(mine: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("f", ALL, ids=lambda f: f.__name__)
def test_gradients_and_random_numbers_are_eagers(f: Program) -> None:
    jitted = tj.jit(f)
    for _ in range(2):
        assert_equal(run(jitted), run(f))
    assert tj.explain(jitted).declined == ()
    assert "JOINT" in {t.stage.name for t in tj.last_traces(jitted)}


@pytest.mark.parametrize("f", [plain, dropout, nested, noise], ids=lambda f: f.__name__)
def test_only_inputs_and_states_are_saved(f: Program) -> None:
    jitted = tj.jit(f)
    run(jitted)
    forward = tj.last_trace(jitted, "forward")
    inputs = {p.name for p in forward.inputs}
    others = [p for p in forward.outputs[2] if p.name not in inputs]
    assert {type(p).__name__ for p in others} <= {"OpaqueProxy"}
    draws = [c for c in forward.calls if c.symbol.qualname == "tj_autograd.joint.replay.advance"]
    assert bool(draws) == (f is not plain)


def test_a_second_backward_draws_the_same_numbers() -> None:
    def twice(fn: Any) -> list[Tensor]:
        torch.manual_seed(0)
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        out = fn(x, w)
        first = torch.autograd.grad(out, [x, w], retain_graph=True)
        torch.rand(3)
        return [*first, *torch.autograd.grad(out, [x, w])]

    assert_equal(twice(tj.jit(draws_everywhere)), twice(draws_everywhere))


class Broken(Exception):
    """Raised in the middle of a call that draws again."""


def breaking(countdown: list[int]) -> Any:
    """A plugin with an executor whose random factors fail when ``countdown`` is down to 0."""

    def bernoulli(x: Tensor, p: float) -> Tensor:
        countdown[0] -= 1
        drawn = torch.ops.aten.bernoulli.p(x, p)
        if countdown[0] == 0:
            raise Broken
        return drawn

    class Breaking:
        TJ_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def tj_executors(options: Any) -> Any:
            claims: RuleTable[Claim] = RuleTable("claim")
            claims.set("aten.bernoulli.p", Claim(bernoulli))
            return (Executor("breaking", claims),)

    return Breaking


@pytest.mark.parametrize("at", [1, 2])
def test_an_error_while_numbers_are_drawn_again(at: int) -> None:
    """The generator has its state from before the call, and the backward can run again."""
    countdown = [-1]
    f = draws_everywhere
    jitted = tj.jit(f, session=tj.Session([breaking(countdown), "torch", "autograd"]))
    found = []
    for fn in (jitted, f):
        torch.manual_seed(0)
        x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        out = fn(x, w)
        torch.rand(3)
        if fn is jitted:
            before, countdown[0] = torch.get_rng_state(), at
            with pytest.raises(Broken):
                out.backward(retain_graph=True)
            assert torch.equal(torch.get_rng_state(), before)
            x.grad = w.grad = None
        out.backward()
        found.append((x.grad, w.grad, torch.rand(3)))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


def test_without_the_generators_state_drawn_numbers_are_saved() -> None:
    """Eager draws other numbers in the backward: its gradient is of another function."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        def region(a: Tensor) -> Tensor:
            return F.dropout(a.exp(), 0.5) * w[0]

        return checkpointed(region, x, preserve_rng_state=False)

    jitted = tj.jit(f)
    x, w = torch.randn(3, 4, requires_grad=True), torch.ones(4, 4)
    out = jitted(x, w)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out)
    assert (out == 0).any()
    assert (out != 0).any()
    assert tj.explain(jitted).declined == ()


MM = torch.ops.aten.mm.default
POLICIES = {
    "save products": lambda ctx, op, *a, **k: (
        CheckpointPolicy.MUST_SAVE if op is MM else CheckpointPolicy.PREFER_RECOMPUTE
    ),
    "recompute all": lambda ctx, op, *a, **k: CheckpointPolicy.MUST_RECOMPUTE,
    "prefer saving": lambda ctx, op, *a, **k: CheckpointPolicy.PREFER_SAVE,
    "save all": lambda ctx, op, *a, **k: CheckpointPolicy.MUST_SAVE,
}


def test_regions_run_again_one_by_one() -> None:
    """Each region runs again from its inputs, the results of the one before."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = checkpointed(lambda a: F.dropout(torch.tanh(a @ w) @ w, 0.5), x)
        return (x * x).sum()

    jitted = tj.jit(f)
    assert_equal(run(jitted), run(f))
    forward, backward = (tj.last_trace(jitted, which) for which in ("forward", "backward"))
    saved = [p for p in forward.outputs[2] if isinstance(p, TensorProxy)]
    assert len(saved) == 2 + 4  # arguments and results
    order = [c.tags.get("CHECKPOINT") for c in backward.calls if "CHECKPOINT" in c.tags]
    assert order == sorted(order, reverse=True)
    assert set(order) == set("0123")


PRODUCTS_AGAIN = {"save products": 0, "recompute all": 2, "prefer saving": 0, "save all": 0}


@pytest.mark.parametrize("name", POLICIES)
def test_policies(name: str) -> None:
    context_fn = functools.partial(create_selective_checkpoint_contexts, POLICIES[name])

    def f(x: Tensor, w: Tensor) -> Tensor:
        def region(a: Tensor) -> Tensor:
            b = (a @ w).sin()
            # Eager refuses to save what a later operation writes, as dropout does.
            return (F.dropout(b, 0.5) if name == "recompute all" else b.exp()) @ w @ w

        return checkpointed(region, x, context_fn=context_fn).cos().sum()

    jitted = tj.jit(f)
    assert_equal(run(jitted), run(f))
    assert tj.explain(jitted).declined == ()
    again = [c for c in tj.last_trace(jitted, "backward").calls if c.symbol.name == "matmul"]
    assert len(again) == PRODUCTS_AGAIN[name]

"""Gradients of gradients: the program runs once more under PyTorch's own autograd."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.versions import left_to_this_version
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def f(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (F.layer_norm(torch.tanh(x @ w), (5,)) ** 2).sum(), (x * w.sum()).sin()


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)


def one_result(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b = f(x, w)
    return a + b.sum()


def orders(fn: Any, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    outs = fn(x, w)
    loss = outs[0] + outs[1].sum() if isinstance(outs, tuple) else outs
    first = torch.autograd.grad(loss, [x, w], create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), [x, w], create_graph=True)
    third = torch.autograd.grad(sum((g**3).sum() for g in second), [x, w])
    return [*first, *second, *third]


def test_first_second_and_third_order() -> None:
    jitted = tj.jit(one_result)
    pairs = zip(orders(jitted, *leaves()), orders(one_result, *leaves()), strict=True)
    for mine, theirs in pairs:
        assert torch.equal(mine, theirs)


TWICE = {
    "product": lambda x, w: (x @ w).sum(),
    "power": lambda x, w: (x**2).sum() + w.sum(),
    "transposed": lambda x, w: (x * x * x).t().contiguous().sum() * w.sum(),
    "row": lambda x, w: (x * x)[0].sum() + w.mean() ** 2,
}


@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_gradients_are_views_only_where_eagers_are(name: str) -> None:
    found = []
    for fn in (tj.jit(TWICE[name]), TWICE[name]):
        x, w = leaves()
        first = torch.autograd.grad(fn(x, w), [x, w], create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), x, create_graph=True)
        third = torch.autograd.grad(sum((g**3).sum() for g in second), x, create_graph=True)
        made = [*second, *third]
        found.append([(g._is_view(), g.stride(), type(g.grad_fn).__name__) for g in made])
    assert found[0] == found[1]


def test_orders_of_two_results() -> None:
    """Two nodes: the gradients of their gradients are added in another order than in one graph.

    In double precision: the third ones are large, and sums of what nearly cancels.
    """
    jitted = tj.jit(f)
    x, w = (t.detach().double().requires_grad_() for t in leaves())
    pairs = list(zip(orders(jitted, x, w), orders(f, x, w), strict=True))
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs[:2])


def test_gradient_penalty() -> None:
    def penalty(fn: Any) -> Any:
        x, w = leaves()
        y = x * 1.5  # no leaf
        out = fn(y, w)[1].sum()
        (g,) = torch.autograd.grad(out, y, create_graph=True)
        (out + (g.norm() - 1) ** 2).backward()
        return x.grad, w.grad

    # One term goes through the backward program, one through its own gradient: the sum of the two
    # is rounded otherwise than where both are one graph.
    for mine, theirs in zip(penalty(tj.jit(f)), penalty(f), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_gradgradcheck() -> None:
    jitted = tj.jit(lambda x, w: torch.tanh(x @ w).exp().sum(1))
    x, w = (t.detach().double().requires_grad_() for t in leaves())
    assert torch.autograd.gradcheck(jitted, (x, w))
    assert torch.autograd.gradgradcheck(jitted, (x, w))


def test_hessian() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x**2).sum()

    x = torch.randn(4)
    mine = torch.autograd.functional.hessian(tj.jit(g), x)
    assert torch.equal(mine, torch.autograd.functional.hessian(g, x))


def biased(b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return b + w.exp().sum(0)


def scaled(b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return b * w.sum(0)


def squashed(b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Saves no argument; eager none either."""
    return torch.tanh(b + w.sum(0))


ONE_ARGUMENT_MATTERS = [biased, scaled, squashed]


@pytest.mark.parametrize("f", ONE_ARGUMENT_MATTERS, ids=lambda f: f.__name__)
def test_an_input_written_in_between(f: Any) -> None:
    """Eager refuses where the gradient depends on its value; tj also where it is not saved."""

    def run(fn: Any) -> torch.Tensor:
        w = leaves()[1]
        b = w[0] * 2
        out = fn(b, w)
        with torch.no_grad():
            b.add_(1)
        return torch.autograd.grad(out.sum(), w, create_graph=True)[0]

    if f is biased:
        assert torch.equal(run(tj.jit(f)), run(f))
        return
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(tj.jit(f))


def test_an_input_written_in_between_of_which_nothing_is_differentiated_again() -> None:
    w = leaves()[1]
    b = w[0] * 2
    out = tj.jit(squashed)(b, w)
    with torch.no_grad():
        b.add_(1)
    out.sum().backward()
    assert w.grad is not None


@pytest.mark.parametrize("f", ONE_ARGUMENT_MATTERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("hooks", [False, True])
def test_inputs_that_are_gone(f: Any, hooks: bool) -> None:
    """Temporaries live as long as the graph, also where hooks pack saved tensors."""

    def run(fn: Any) -> list[torch.Tensor]:
        w = leaves()[1]
        packing = torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach() * 1, lambda t: t)
        with packing if hooks else contextlib.nullcontext():
            out = fn(w[0] * 2, w * 3)
        gc.collect()
        (g,) = torch.autograd.grad((out**2).sum(), w, create_graph=True)
        return [g, *torch.autograd.grad(g.pow(2).sum(), w)] if not hooks else [g]

    for a, b in zip(run(tj.jit(f)), run(f), strict=True):
        torch.testing.assert_close(a, b)


def test_what_is_kept_is_freed_with_the_graph() -> None:
    w = leaves()[1]
    b = torch.ones(5)
    kept = weakref.ref(b)
    out = tj.jit(squashed)(b, w).sum()
    del b
    assert kept() is not None
    out.backward()
    assert kept() is None
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(out, w, create_graph=True)


@pytest.mark.parametrize("f", ONE_ARGUMENT_MATTERS, ids=lambda f: f.__name__)
def test_inputs_whose_value_does_not_matter_are_not_kept(f: Any) -> None:
    w, b = leaves()[1], torch.ones(5)
    kept = weakref.ref(b)
    out = tj.jit(f)(b, w)
    del b
    assert (kept() is None) is (f is biased)
    assert out.requires_grad


def test_a_layer_called_twice() -> None:
    def run(fn: Any) -> list[torch.Tensor]:
        x = torch.tensor([3.0], requires_grad=True)
        (g,) = torch.autograd.grad(fn(fn(x, x), x), x, create_graph=True)
        return [g, *torch.autograd.grad(g, x)]

    def cube(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b

    assert all(map(torch.equal, run(tj.jit(cube)), run(cube)))


def test_arguments_made_of_each_other() -> None:
    """One argument is computed from another; that path is not part of the program."""

    def run(fn: Any) -> list[torch.Tensor]:
        x, w = leaves()
        y = (x @ w).tanh()
        seen: list[torch.Tensor] = []
        y.register_hook(lambda g: seen.append(g.detach()))
        first = torch.autograd.grad(fn(y, w, x), [x, w, y], create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), [x, w])
        return [*first, *second, *seen]

    def g(y: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (y.sin() * (x @ w)).sum()

    mine, theirs = run(tj.jit(g)), run(g)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["hvp", "vhp", "jacobian", "hessian", "jvp", "vjp"])
def test_functions_of_autograd(name: str) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x**2).tanh()

    def run(fn: Any) -> Any:
        x = leaves()[0].detach()
        vector = name in ("hvp", "vhp", "hessian")

        def g(x: torch.Tensor) -> torch.Tensor:
            y = fn(fn(x * 2) + x)
            return y.sum() if vector else y

        more = [] if name in ("jacobian", "hessian") else [torch.ones_like(x)]
        found = getattr(torch.autograd.functional, name)(g, x, *more)
        return found if isinstance(found, tuple) else (found,)

    for a, b in zip(run(tj.jit(inner)), run(inner), strict=True):
        torch.testing.assert_close(a, b)


def test_nested_checkpoint_of_a_compiled_layer() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh((x @ w).relu() @ w.t())

    def run(fn: Any) -> list[torch.Tensor]:
        x, w = leaves()

        def inner(a: torch.Tensor) -> torch.Tensor:
            return fn(a * 2, w) + 1

        def outer(a: torch.Tensor) -> torch.Tensor:
            return checkpoint(inner, fn(a, w), use_reentrant=False) * 2

        out = checkpoint(outer, x, use_reentrant=False)
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return [g, *torch.autograd.grad((g**2).sum(), [x, w])]

    for a, b in zip(run(tj.jit(layer)), run(layer), strict=True):
        torch.testing.assert_close(a, b)


def writes_its_argument(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x + w.sum()).sin()
    x.mul_(2)
    return y**2


def writes_without_autograd(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x + w.sum()).sin()
    with torch.no_grad():
        x.add_(1)
    return y**2


def draws(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5).sin() @ w * torch.rand(5)


def checkpointed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda a: F.dropout((a @ w).sin(), 0.5), x, use_reentrant=False)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g + x


def through_a_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Cube.apply(x @ w)


PROGRAMS = [writes_its_argument, writes_without_autograd, draws, checkpointed, through_a_function]


def twice(fn: Any) -> list[torch.Tensor]:
    """Gradients of gradients of an argument that is no leaf, and numbers drawn in between."""
    x, w = leaves()
    torch.manual_seed(1)
    y = x * 1.5
    out = fn(y, w)
    drawn = [torch.rand(2)]
    first = torch.autograd.grad(out.sum(), [x, w], create_graph=True)
    drawn.append(torch.rand(2))
    second = torch.autograd.grad(sum((g**2).sum() for g in first), [x, w])
    return [out, *first, *second, *drawn, torch.rand(2)]


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_that_write_draw_and_run_again(f: Any) -> None:
    jitted = tj.jit(f)
    for mine, theirs in zip(twice(jitted), twice(f), strict=True):
        assert torch.equal(mine, theirs)
    if not left_to_this_version(tj.stats(jitted).fallbacks):
        assert tj.explain(jitted).declined == ()


def test_only_inputs_that_are_written_are_copied() -> None:
    x, w = leaves()
    norm = nn.BatchNorm1d(3)
    for f, copies in ((writes_its_argument, 1), (draws, 0), (lambda x, w: norm(x) @ w, 0)):
        jitted = tj.jit(f)
        out = jitted(x * 1, w)
        node = out.grad_fn
        while "Compiled" not in type(node).__name__:
            node = node.next_functions[0][0]
        assert len(node.inputs.copies) == copies


def test_batch_norm_in_training() -> None:
    def run(wrap: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.randn(6, 3, requires_grad=True)
        (g,) = torch.autograd.grad(wrap(model)(x).sum(), x, create_graph=True)
        ((g.norm(dim=1) - 1) ** 2).sum().backward()
        return [*(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]

    for mine, theirs in zip(run(tj.jit), run(lambda m: m), strict=True):
        assert torch.equal(mine, theirs)


def test_once_differentiable() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    def second(fn: Any) -> str:
        x, _ = leaves()
        (g,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError) as caught:
            g.sum().backward()
        return str(caught.value)

    assert second(tj.jit(lambda x: Once.apply(x))) == second(lambda x: Once.apply(x))


def test_indices_are_what_they_were_when_the_program_runs_again() -> None:
    """The gradient of `lu_unpack` reads no pivots, and the call refuses any others."""
    factors, pivots = torch.linalg.lu_factor(leaves()[0].detach()[:3])
    found = []
    for f in (torch.lu_unpack, tj.jit(lambda *args: torch.lu_unpack(*args))):
        x = factors.clone().requires_grad_()
        _, lower, upper = f(x, pivots)
        loss = (lower**3).sum() + (upper**3).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), x))
    assert torch.equal(*(second for (second,) in found))


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_argument_that_receives_a_gradient_needs_none_itself(dynamic: bool) -> None:
    def written(x: torch.Tensor, y: torch.Tensor) -> Any:
        before = y.clone()
        y.mul_(x)
        return before, x * before

    found = []
    for f in (written, tj.jit(written, dynamic=dynamic)):
        x, y = leaves()[0], torch.linspace(-1, 1, 12).view(4, 3)
        before, product = f(x * x, y)
        assert not before.requires_grad
        loss = (y + product).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), x))
    assert torch.equal(*(second for (second,) in found))

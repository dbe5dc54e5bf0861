"""Returned views on which other results depend: gradients go through them, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.nn import functional as F

Program = Callable[[torch.Tensor, torch.Tensor], Any]


def of_an_intermediate(x: torch.Tensor, w: torch.Tensor) -> Any:
    a = (x @ w).t()
    return a, (a * 3).sum()


def of_an_input(x: torch.Tensor, w: torch.Tensor) -> Any:
    a = x.view(-1)
    return a, (a * a).sum() + w.sum()


def several_of_one(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b = (x @ w).chunk(2)
    return a, b, (a + 2 * b).sin()


def one_after_the_other(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x @ w
    a = h.view(2, 2, 3)
    b = a.transpose(0, 1)
    c = b * h.view(2, 2, 3)
    d = c[0]
    return b, c, d, (d.tanh() + b[1]).sum()


def of_a_layer(x: torch.Tensor, w: torch.Tensor) -> Any:
    """The rows of a product with a bias in another shape, whose sizes the layer reads."""
    logits = F.linear(x.view(-1, 1, 3), w, w[0])
    return logits, logits.logsumexp(-1).sum()


def with_its_base(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.sin()
    a = h.t()
    return h, a, a[0], (a @ h) + h.sum()


def keys_and_values(x: torch.Tensor, w: torch.Tensor) -> Any:
    """A layer of attention that returns keys and values for a cache."""
    query, key, value = (F.linear(x, m).view(1, 4, 3, 1).transpose(1, 2) for m in (w, w.t(), w * 2))
    return key, value, (query @ key.mT).softmax(-1) @ value


def of_what_others_are_made_of_too(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x * w.sum()
    a, b = h.t(), h.view(-1)
    return a, (a * b.view(3, 4)).sum(), b.sum(), h.exp().sum()


PROGRAMS = [
    of_an_intermediate,
    of_an_input,
    several_of_one,
    one_after_the_other,
    of_a_layer,
    with_its_base,
    keys_and_values,
    of_what_others_are_made_of_too,
]
programs = pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)


def leaves(n: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    made = {"dtype": torch.float64, "requires_grad": True}
    return torch.randn(n, 3, **made), torch.randn(3, 3, **made)


def watched(fn: Program, n: int = 4, *, leaf: bool = False) -> list[Any]:
    """Observations of hooks, kept gradients and leaves after one backward of the last result."""
    x, w = leaves(n)
    outs = fn(x if leaf else x * 1, w)
    seen: list[Any] = [None] * len(outs)
    for i, out in enumerate(outs):
        out.register_hook(lambda g, i=i: seen.__setitem__(i, g.clone()))
        out.retain_grad()
    (outs[-1] ** 2).sum().backward()
    return [*seen, *(o.grad for o in outs), x.grad, w.grad]


def taken(fn: Program) -> list[Any]:
    """Gradients of the last result, of first and second order, by all results before it."""
    x, w = leaves()
    *others, last = fn(x * 1, w)
    first = torch.autograd.grad(
        (last**2).sum(), [*others, x, w], create_graph=True, allow_unused=True
    )
    present = [g for g in first if g is not None and g.requires_grad]
    total = sum((g * g).sum() for g in present)
    return [*first, *torch.autograd.grad(total, [*others, x, w], allow_unused=True)]


def written_to(fn: Program) -> list[Any]:
    """Gradients and values where the caller writes to what is returned last."""
    x, w = leaves()
    outs = fn(x * 1, w)
    outs[-1].mul_(3)
    sum(o.sum() for o in outs).backward()
    return [*outs, *(o._version for o in outs), *(o._is_view() for o in outs), x.grad, w.grad]


def equal(mine: list[Any], theirs: list[Any]) -> None:
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) is (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.sampled(12)
@programs
@pytest.mark.parametrize("look", [watched, taken, written_to], ids=lambda f: f.__name__)
def test_gradients_go_through_returned_views(f: Program, look: Callable[..., Any]) -> None:
    jitted = tj.jit(f)
    equal(look(jitted), look(f))
    assert tj.explain(jitted).declined == ()


@pytest.mark.sampled(12)
@programs
def test_under_the_backend(f: Program) -> None:
    torch.compiler.reset()
    equal(watched(torch.compile(f, backend="tj"), leaf=True), watched(f, leaf=True))


@pytest.mark.parametrize("f", [of_an_intermediate, of_an_input, of_a_layer, with_its_base])
def test_sizes_that_are_symbols(f: Program) -> None:
    jitted = tj.jit(f, dynamic=True)
    for n in (4, 7, 5):
        equal(watched(jitted, n), watched(f, n))
    assert tj.stats(jitted).entries == 1
    assert tj.explain(jitted).declined == ()


@pytest.mark.sampled(12)
@programs
def test_without_traced_gradients(f: Program) -> None:
    session = tj.Session(["torch"], overrides={"torch": {"functional": "always"}})
    equal(watched(tj.jit(f, session=session)), watched(f))


def of_a_computed_size(x: torch.Tensor, w: torch.Tensor) -> Any:
    n = int(x.shape[0] * 2 - 4)
    a = (x @ w).narrow(0, 0, n)
    return a, a.sin()


def of_what_is_written(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x @ w
    a = h.t()
    h.mul_(2)
    return a, a.exp()


def test_what_is_written_is_left_to_pytorch() -> None:
    jitted = tj.jit(of_what_is_written)
    equal(watched(jitted), watched(of_what_is_written))
    _, why = tj.explain(jitted).declined[0]
    assert "depends on" in why.reason


def test_computed_sizes() -> None:
    jitted = tj.jit(of_a_computed_size, dynamic=True)
    for n in (4, 3):
        equal(watched(jitted, n), watched(of_a_computed_size, n))


def of_one_view(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.no_grad():
        a = x.view(-1).view(3, 4)
    return a, (a.sin() @ w.sum(0, keepdim=True).expand(4, 3)).sum()


def of_a_chain(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.no_grad():
        a = x.t().unsqueeze(0)[0]
    b = a.t()
    return a, b, (b @ w).sin().sum()


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "result"])
@pytest.mark.parametrize("f", [of_one_view, of_a_chain], ids=lambda f: f.__name__)
def test_views_of_views_that_are_made_without_gradients(f: Program, leaf: bool) -> None:
    """They require a gradient, as what they are views of does, and pass none on."""
    seen: list[Any] = []
    for fn in (tj.jit(f), f):
        x, w = leaves()
        outs = fn(x if leaf else x * 1, w)
        gradients = torch.autograd.grad(outs[-1], [x, w], allow_unused=True)
        facts = [(o.requires_grad, o._is_view(), o.grad_fn is None) for o in outs]
        seen.append(([*outs, *gradients], facts))
    equal(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]

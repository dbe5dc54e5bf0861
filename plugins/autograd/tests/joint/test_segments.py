"""Programs with several results: each has the gradient and the graph of its own that eager gives
it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.orders import compare
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def loss_and_logits(x: torch.Tensor, w: torch.Tensor) -> Any:
    logits = torch.tanh(x @ w)
    return F.cross_entropy(logits, torch.tensor([0, 1, 2, 0])), logits


def chain(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x * w.sum()
    y = (h.sin() * h).exp()
    return h, y, (y * h).sum()


def two_losses(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (x**2).sum(), (w.sin() * w).sum()


def under_checkpoint(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = checkpoint(lambda a: F.dropout(a.sin(), 0.5).exp(), x @ w, use_reentrant=False)
    return h, (h * h).sum()


def written(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x @ w
    h.mul_(2)
    y = h.sin()
    y.add_(h)
    return h, y


def an_input_and_twice_the_same(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x @ w
    return h, x, h, h.exp()


PROGRAMS = [
    loss_and_logits,
    chain,
    two_losses,
    under_checkpoint,
    written,
    an_input_and_twice_the_same,
]
programs = pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)


def leaves(n: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(n, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)


def watched(fn: Callable[..., Any], n: int = 4) -> list[torch.Tensor]:
    """Observations of hooks, kept gradients and leaves after one backward of all results."""
    x, w = leaves(n)
    outs = fn(x, w)
    seen: list[torch.Tensor] = []
    for out in outs:
        out.register_hook(lambda g: seen.append(g.clone()))
        out.retain_grad()
    sum((o * o).sum() for o in outs).backward()
    return [*seen, *(o.grad for o in outs), x.grad, w.grad]


def equal(mine: list[Any], theirs: list[Any]) -> None:
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) is (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@programs
def test_hooks_and_kept_gradients_of_results(f: Any) -> None:
    jitted = tj.jit(f)
    equal(watched(jitted), watched(f))
    assert tj.explain(jitted).declined == ()


@programs
def test_under_the_backend(f: Any) -> None:
    torch.compiler.reset()
    equal(watched(torch.compile(f, backend="tj")), watched(f))


@pytest.mark.parametrize("f", [chain, written, two_losses], ids=lambda f: f.__name__)
def test_sizes_that_are_symbols(f: Any) -> None:
    jitted = tj.jit(f, dynamic=True)
    for n in (4, 7, 5):
        equal(watched(jitted, n), watched(f, n))
    assert tj.stats(jitted).entries == 1


def caches(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Three products of one value, two of which are returned, as a model's key and value are."""
    h = x.tanh()
    q, k, v = h @ w, h @ w.t(), h @ (w * w)
    return F.scaled_dot_product_attention(q[None], k[None], v[None]).sum(), k, v


def routed(x: torch.Tensor, w: torch.Tensor) -> Any:
    """A value's gradient from both sides of a result, the later one first."""
    h = x.tanh()
    a = (h @ w).sin()
    routes = h @ w.t()
    b = (h * routes.softmax(-1)).cos() + h @ (w * 0.3)
    return (a + b).exp().sum(), routes


@pytest.mark.parametrize("f", [caches, routed], ids=lambda f: f.__name__)
def test_gradients_are_added_in_the_order_of_eager(f: Any) -> None:
    def run(fn: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        x, w = torch.randn(64, 32, requires_grad=True), torch.randn(32, 32, requires_grad=True)
        fn(x, w)[0].backward()
        assert x.grad is not None
        assert w.grad is not None
        return [x.grad, w.grad]

    for mine, theirs in zip(run(tj.jit(f)), run(f), strict=True):
        assert torch.equal(mine, theirs)


def test_gradients_by_results() -> None:
    def run(fn: Any) -> list[torch.Tensor]:
        x, w = leaves()
        h, y, z = fn(x, w)
        (by_h,) = torch.autograd.grad(z, h, retain_graph=True)
        by_y, by_x = torch.autograd.grad(z, [y, x], retain_graph=True)
        (both,) = torch.autograd.grad([y.sum(), z], h, create_graph=True)
        (again,) = torch.autograd.grad(both.sum(), h)
        return [by_h, by_y, by_x, both, again]

    equal(run(tj.jit(chain)), run(chain))


def test_two_losses_each_with_its_own_backward() -> None:
    def run(fn: Any) -> list[torch.Tensor]:
        x, w = leaves()
        a, b = fn(x, w)
        a.backward()
        b.backward()
        return [x.grad, w.grad]

    equal(run(tj.jit(two_losses)), run(two_losses))


def test_a_trunk_is_freed_with_the_first_of_two() -> None:
    for fn in (tj.jit(chain), chain):
        h, _, z = fn(*leaves())
        z.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            h.sum().backward()


def test_a_multi_grad_hook_of_results() -> None:
    def run(fn: Any) -> list[Any]:
        seen: list[Any] = []
        outs = fn(*leaves())
        torch.autograd.graph.register_multi_grad_hook(outs, lambda gs: seen.extend(gs))
        outs[-1].sum().backward()
        return seen

    mine, theirs = run(tj.jit(chain)), run(chain)
    assert theirs
    equal(mine, theirs)


def test_what_a_segment_saves_is_freed_with_it() -> None:
    jitted = tj.jit(two_losses)
    x, w = leaves()
    kept = weakref.ref(t := x * 1)
    a, b = jitted(t, w)
    del t
    a.backward()
    gc.collect()
    assert kept() is None
    assert b.requires_grad


def test_each_segment_has_a_backward_trace() -> None:
    jitted = tj.jit(chain)
    for out in jitted(*leaves()):
        out.sum().backward(retain_graph=True)
    names = ("backward", "backward.1", "backward.2")
    gradients = [tj.last_trace(jitted, name).outputs for name in names]
    assert [{key.partition(".")[0] for key in found} for found in gradients] == [
        {"x", "w"},
        {"h"},
        {"h", "y"},
    ]


def test_one_result_is_one_node() -> None:
    jitted = tj.jit(lambda x, w: (chain(x, w)[2], w.sum()))
    x, w = leaves()
    out, _ = tj.jit(lambda x, w: (chain(x, w)[2], x.detach() * 2))(x, w)
    assert {type(n).__name__ for n, _ in out.grad_fn.next_functions} == {"AccumulateGrad"}
    assert jitted(x, w)[0].grad_fn is not None


def test_made_up_programs() -> None:
    compare(seed=1, programs_=12)


def scaled_twice(x: torch.Tensor, scale: torch.Tensor, w: torch.Tensor) -> Any:
    """The sum of two gradients of ``h`` is laid out as the one that comes first."""
    h = x * scale[..., None]
    near = torch.einsum("blhp,bsl->bshp", h, w)
    state = torch.einsum("blhp,bl->bhp", h, w[:, 0])
    return near + state.exp()[:, None], state.sin()


def test_a_gradient_of_two_segments_is_laid_out_as_eagers() -> None:
    def gradients(f: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        args = [torch.randn(s).requires_grad_() for s in ((2, 64, 4, 9), (2, 64, 4), (2, 64, 64))]
        outs = f(*args)
        torch.autograd.backward(outs, [torch.randn_like(out) for out in outs])
        return [arg.grad for arg in args if arg.grad is not None]

    for mine, theirs in zip(gradients(tj.jit(scaled_twice)), gradients(scaled_twice), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()

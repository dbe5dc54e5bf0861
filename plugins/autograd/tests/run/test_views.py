"""Views that a program returns: of inputs, of other outputs, and of memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn
from torch.utils import _pytree as pytree

Program = Callable[[torch.Tensor, torch.Tensor], Any]


def of_an_intermediate(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (x @ w).t()


def of_another_output(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x @ w
    return y, y.t()[0]


def of_one_intermediate(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x.sin()
    return y.view(-1), y.detach(), y.view(-1)[::2]


def of_an_input(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.t(), x.view(-1)[1:], w.unbind(0)[1] * 2


def several(x: torch.Tensor, w: torch.Tensor) -> Any:
    return {"parts": x.split(2, 1), "product": torch.nn.functional.linear(x[None], w)}


def expanded(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (x * w[0]).expand(2, 4, 4), x[0].detach()


def after_itself_unused(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.add_(w)
    y = x * 2
    x.contiguous()  # the program between two nodes of autograd makes nothing
    return y[:1]


PROGRAMS = [
    after_itself_unused,
    of_an_intermediate,
    of_another_output,
    of_one_intermediate,
    of_an_input,
    several,
    expanded,
]


def outcome(f: Program, write: bool) -> Any:
    """Values, metadata, sharing of memory, and gradients; with ``write``, an output is written
    first.
    """
    torch.manual_seed(0)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    middle = x * 1
    outs = [o for o in pytree.tree_leaves(f(middle, w)) if isinstance(o, torch.Tensor)]
    if write:
        outs[0].mul_(3)
    places = [t.untyped_storage().data_ptr() for t in (middle, *outs)]
    shared = [[a == b for a in places] for b in places]
    values = [(o.detach().clone(), o.stride(), o.storage_offset(), o.requires_grad) for o in outs]
    sum((o * o).sum() for o in outs if o.requires_grad).backward()
    return values, shared, x.grad, w.grad


# Eager refuses to write to one of several views of a split, and to what is expanded.
WRITTEN = [(f, write) for f in PROGRAMS for write in (False, f not in (several, expanded))]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("f", "write"), dict.fromkeys(WRITTEN))
def test_returned_views(f: Program, write: bool) -> None:
    jitted = tj.jit(f)
    mine, theirs = outcome(jitted, write), outcome(f, write)
    assert mine[1] == theirs[1]
    for a, b in zip(pytree.tree_leaves(mine), pytree.tree_leaves(theirs), strict=True):
        assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b
    assert tj.explain(jitted).declined == ()
    assert tj.stats(jitted).fallbacks == ()


def test_the_views_of_inputs_are_views_for_pytorch() -> None:
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    transposed, flat, _ = tj.jit(of_an_input)(x, w)
    assert transposed._base is x
    assert flat._base is x
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        flat.mul_(2)


def test_nothing_but_views_of_inputs() -> None:
    jitted = tj.jit(lambda x: (x.t(), x.argmax()))
    x = torch.randn(3, 4, requires_grad=True)
    view, largest = jitted(x)
    assert view._base is x
    assert int(largest) == int(x.argmax())
    assert tj.explain(jitted).declined == ()


ENDING_IN_A_VIEW = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (2, 3, 4)),
    "written": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True)), (2, 3, 4)),
    "written, then used": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        (2, 3, 4),
    ),
    "viewed": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(2, (3, 2))), (2, 3, 4)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3), (3, 8, 8)),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("make", "shape"), ENDING_IN_A_VIEW.values(), ids=ENDING_IN_A_VIEW)
def test_a_view_of_hidden_memory_is_made_again(make, shape, dynamic) -> None:
    """As `linear` returns of its product up to 2.14, whose gradient is a trace all the same."""
    model = make()
    jitted = tj.jit(model, plugins=["torch", "autograd"], dynamic=dynamic)
    found = []
    for run in (model, jitted, jitted):
        model.zero_grad()
        x = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).requires_grad_()
        out = run(x)
        (out * 1).sin().sum().backward()
        bases = [] if out._base is None else [out._base.detach()]
        tensors = [out.detach(), *bases, x.grad, *(p.grad for p in model.parameters())]
        found.append((tensors, len(bases), out._version, out.stride(), out.is_leaf))
    expected, *rest = found
    for mine in rest:
        assert all(map(torch.equal, mine[0], expected[0]))
        assert mine[1:] == expected[1:]
    assert tj.last_trace(jitted, "backward").calls

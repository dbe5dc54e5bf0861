"""Programs whose results require no gradients compute without them, as eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import requires_grad
from torch import nn

NET = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
NORMED = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
DROPPED = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5))


def whole(x: torch.Tensor) -> Any:
    return NET(x).detach()


def part(x: torch.Tensor) -> Any:
    y = NET(x)
    return y.detach().argmax(1), y.detach() * 2


def buffers(x: torch.Tensor) -> Any:
    return NORMED(x).detach()


def random(x: torch.Tensor) -> Any:
    return DROPPED(x).sum().detach() + torch.rand(())


def integers(x: torch.Tensor) -> Any:
    return NET(x).argmax(-1), (NET(x) > 0).sum()


def numbers_too(x: torch.Tensor) -> Any:
    y = NET(x).detach()
    return y, y.shape[0], x.shape[0] * 2, None, "text"


def argument_too(x: torch.Tensor) -> Any:
    return x, NET(x).detach()


def needed(x: torch.Tensor) -> Any:
    y = NET(x)
    return y.detach(), y.sum()


def view_of_a_parameter(x: torch.Tensor) -> Any:
    return NET(x).detach(), NET[0].weight.t()


def written(x: torch.Tensor) -> Any:
    y = torch.zeros(x.shape[0], 2)
    y.copy_(NET(x))
    return y.detach()


def checkpoint(x: torch.Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(NET, x, use_reentrant=False).detach()


def bound(f: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    torch.manual_seed(0)
    NORMED[1].reset_running_stats()  # type: ignore[operator]  # a BatchNorm1d
    results = torch.utils._pytree.tree_leaves(f(x))
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    facts = [(r.detach().clone(), r.requires_grad, r.stride(), r._base is None) for r in tensors]
    return [*facts, *(b.clone() for b in NORMED.buffers()), torch.rand(())]


@pytest.mark.parametrize(
    ("f", "switched"),
    [
        (whole, True),
        (part, True),
        (buffers, True),
        (random, True),
        (integers, True),
        (argument_too, True),
        (numbers_too, True),
        (needed, False),
        (view_of_a_parameter, False),
        (written, False),
        (checkpoint, None),  # True where it is inlined
    ],
)
@pytest.mark.parametrize("plugins", [("torch",), ("autograd", "torch")])
def test_without_gradients(f: Any, switched: bool | None, plugins: tuple[str, ...]) -> None:
    jitted = tj.jit(f, session=tj.Session(plugins, overrides={"strict": True}))
    for wanted in (False, True, False):
        for n in (3, 3, 5):
            x = torch.randn(n, 4).requires_grad_(wanted)
            torch.testing.assert_close(bound(jitted, x), bound(f, x), rtol=0, atol=0)
    passes = [record.name for record in tj.last_trace(jitted).history]
    assert switched is None or ("unneeded-gradients" in passes) == switched
    if switched:
        trace = tj.last_trace(jitted)
        assert not any(requires_grad(p) for c in trace.calls for p in c.flat_outs)


def test_kernels_that_are_chosen_by_gradients_stay() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * (2 if ctx.needs_input_grad[0] else 3)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # one
            return g

    def f(x: torch.Tensor) -> torch.Tensor:
        return Twice.apply(x).detach()  # type: ignore[no-any-return, no-untyped-call]  # of PyTorch

    jitted, x = tj.jit(f, session=tj.Session(("autograd", "torch"))), torch.ones(2)
    for wanted in (False, True):
        x = x.detach().requires_grad_(wanted)
        assert torch.equal(jitted(x), f(x))

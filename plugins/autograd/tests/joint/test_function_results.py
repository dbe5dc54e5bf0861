"""Results of a Function's forward that are its argument, or a tensor of its own."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.own import WAYS

# Dynamo makes one where it captures a call of a Function, and looks at ``.grad`` of values.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

X = torch.tensor([-1.0, 0.5, 2.0])


class AsGiven(torch.autograd.Function):
    """Returns its argument, alone or beside another result."""

    @staticmethod
    def forward(ctx, x, several):
        return (x, x * 2) if several else x

    @staticmethod
    def backward(ctx, g, *others):
        return g * 3, None


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("wrap", [tj.jit, lambda f: torch.compile(f, backend="tj")])
def test_an_argument_that_is_returned_where_gradients_are_off(wrap, several) -> None:
    def f(x):
        a = x * 1
        with torch.no_grad():
            o = AsGiven.apply(a, several)
        first = o[0] if several else o
        return first, first * x

    torch._dynamo.reset()
    seen = []
    for fn in (wrap(f), f):
        x = torch.ones(3, requires_grad=True)
        first, second = fn(x)
        second.sum().backward()
        seen.append((first.requires_grad, x.grad.tolist()))
    assert seen[0] == seen[1]


class Fresh(torch.autograd.Function):
    """Returns a tensor that its forward writes out."""

    @staticmethod
    def forward(ctx, x):
        return torch.tensor([1.0])

    @staticmethod
    def backward(ctx, g):
        return g.expand(3)


@pytest.mark.skipif(
    torch.__version__ < (2, 11), reason="PyTorch 2.10: Functions are left to PyTorch"
)
@pytest.mark.parametrize("way", WAYS)
def test_each_call_returns_a_tensor_of_its_own(way: str) -> None:
    compiled = WAYS[way](lambda x: (Fresh.apply(x), Fresh.apply(x)))
    for _ in range(2):
        first, second = compiled(X.clone().requires_grad_())
        first.detach().mul_(7)
        assert (first.item(), second.item()) == (7.0, 1.0)

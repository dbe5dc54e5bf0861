"""A class that says nothing of gradients, called on tensors that require them.

To autograd its tensors are no results of what they hold: operators on them have no gradients with
respect to that, and who looks into one has.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

aten = torch.ops.aten


class LowRank(torch.Tensor):
    """A product of two matrices that is never computed where another matrix comes before it."""

    def __new__(cls, u: torch.Tensor, v: torch.Tensor) -> Any:
        shape = (u.shape[0], v.shape[1])
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=u.dtype, device=u.device)

    def __init__(self, u: torch.Tensor, v: torch.Tensor) -> None:
        self.u, self.v = u, v

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["u", "v"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["u"], inner["v"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.mm.default and isinstance(args[1], cls):
            return args[0] @ args[1].u @ args[1].v
        if func in (aten.detach.default, aten.alias.default):
            return cls(func(args[0].u), func(args[0].v))
        args, kwargs = pytree.tree_map_only(cls, lambda t: t.u @ t.v, (args, kwargs or {}))
        return func(*args, **kwargs)


def under_no_grad(x: Any, u: Any, v: Any) -> Any:
    with torch.no_grad():
        w: Any = LowRank(u * 2, v)
        y = x @ w
    return y, x @ w, w


def checkpointed(x: Any, u: Any, v: Any) -> Any:
    return checkpoint(lambda a, b, c: a @ LowRank(b, c), x, u, v, use_reentrant=False)


PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a product": lambda x, u, v: x @ LowRank(u, v),
    "a product of results": lambda x, u, v: x @ LowRank(u * 2, v.sin()),
    "one part without": lambda x, u, v: x @ LowRank(u, v.detach()),
    "none with": lambda x, u, v: x @ LowRank(u.detach(), v.detach()) + u.sum(),
    "beside a gradient": lambda x, u, v: x @ LowRank(u, v) + u.sum(),
    "two products": lambda x, u, v: (x @ LowRank(u, v), x @ LowRank(u * 2, v)),
    "another operator": lambda x, u, v: LowRank(u, v).sum(),
    "in an operator with a number": lambda x, u, v: LowRank(u, v) * 2,
    "it is returned": lambda x, u, v: LowRank(u, v),
    "of results, it is returned": lambda x, u, v: LowRank(u * 2, v),
    "it is returned and used": lambda x, u, v: (LowRank(u, v), x @ LowRank(u, v)),
    "one is returned and used": lambda x, u, v: [(w, x @ w) for w in [LowRank(u, v)]],
    "under no_grad": under_no_grad,
    "in a checkpoint": checkpointed,
}

SHAPES = [(3, 4, 2, 5), (3, 4, 2, 5), (6, 8, 3, 2)]


def seen(tensor: Any, given: list[Any]) -> Any:
    """Facts of a result for its caller; of a wrapper, also its parts, given ones by index."""
    facts = [type(tensor), tensor.requires_grad, tensor.is_leaf]
    if isinstance(tensor, LowRank):
        held = [tensor.u, tensor.v]
        return [*facts, [seen(t, given) for t in held], [[t is g for g in given] for t in held]]
    return [*facts, tensor.detach()]


def facts(program: Any, shape: tuple[int, ...], grad: bool, train: bool) -> Any:
    """The record of ``program``: results, what these hold, and gradients."""
    torch.manual_seed(0)
    n, k, rank, m = shape
    x = torch.randn(n, k, requires_grad=grad)
    u, v = torch.randn(k, rank, requires_grad=True), torch.randn(rank, m, requires_grad=True)
    with torch.set_grad_enabled(train):
        results = program(x, u, v)
    flat = pytree.tree_leaves(results)
    found = [seen(r, [u, v]) for r in flat]
    losses = [r.sum() for r in flat if r.requires_grad]
    losses += [t.sum() for r in flat if isinstance(r, LowRank) for t in (r.u, r.v)]
    losses = [loss for loss in losses if loss.requires_grad]
    if losses:
        sum(losses).backward()
    return found, [x.grad, u.grad, v.grad]


@pytest.mark.sampled(48)
@pytest.mark.parametrize("train", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("grad", [False, True], ids=["", "argument_with_gradient"])
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(jit: Any, alike: Any, name: str, dynamic: Any, grad: bool, train: bool) -> None:
    torch._dynamo.reset()
    program = PROGRAMS[name]
    jitted = jit(program, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in SHAPES:
            mine, eagers = (facts(f, shape, grad, train) for f in (jitted, program))
            alike(mine, eagers)

"""Programs with regions, compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.compare import call_differences
from tj_conformance.oracle.twins import clone_tree

Program = Callable[..., Any]


def regions(jitted: Any, which: Any = None) -> list[list[str]]:
    """The operators of each region, in order."""
    trace = tj.last_trace(jitted, which) if which else tj.last_trace(jitted)
    found = [c.body for c in trace.calls if c.symbol.path.startswith("region_")]
    return [[c.symbol.path.partition(".")[0] for c in body.calls] for body in found if body]


def hold(jitted: Program, f: Program, *args: Any) -> Any:
    """Results, written arguments, gradients: all as eager's, but for the last bits of values."""
    mine, theirs = clone_tree((args, {})), clone_tree((args, {}))
    got, expected = jitted(*mine[0]), f(*theirs[0])
    found = call_differences(got, mine, expected, theirs)
    assert [str(d) for d in found if not d.rounding] == []
    for result in (got, expected):
        leaves = torch.utils._pytree.tree_leaves(result)
        wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        if wanted:
            total: Any = sum(x.float().sum() if x.is_floating_point() else x.sum() for x in wanted)
            total.backward()
    for a, b in zip(mine[0], theirs[0], strict=True):
        if isinstance(a, torch.Tensor) and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)
            assert a.grad is not None
            assert a.grad.stride() == b.grad.stride()
    return got


def X(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


PROGRAMS: dict[str, tuple[Program, Callable[[], tuple[Any, ...]]]] = {
    "pointwise": (lambda x, y: (x * y + x).tanh() - y.sigmoid(), lambda: (X(9, 5), X(9, 5))),
    "reduction": (lambda x: (x.exp().sum(-1, keepdim=True) * x).mean(0), lambda: (X(9, 5),)),
    "scalars": (lambda x, n, a: (x * n + a).relu() / 3, lambda: (X(4, 4), 3, 0.5)),
    "product": (lambda x, w: F.gelu(x @ w) * 2, lambda: (X(8, 16), X(16, 12))),
    "linear": (lambda x, w, b: F.silu(F.linear(x, w, b)).sum(), lambda: (X(8, 16), X(4, 16), X(4))),
    "norm": (
        lambda x, w, b: F.layer_norm(x * 2, (6,), w, b).relu() + x,
        lambda: (X(5, 6), X(6), X(6)),
    ),
    "softmax": (lambda x: (F.softmax(x * 2, -1) * x).sum(-1), lambda: (X(7, 9),)),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x * 2, t),
        lambda: (X(7, 9), torch.randint(0, 9, (7,))),
    ),
    "convolution": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)).mean((2, 3)),
        lambda: (X(2, 3, 8, 8), X(4, 3, 3, 3)),
    ),
    "masked": (lambda x: x.masked_fill(x > 0, 0.0).exp() * 2, lambda: (X(5, 4),)),
    "where": (lambda x, y: torch.where(x > y, x * 2, y) + 1, lambda: (X(5, 4), X(5, 4))),
    "integers": (
        lambda i: ((i + 2) * i // 3, i.float().sqrt() + 1),
        lambda: (torch.randint(1, 10, (4, 3)),),
    ),
    "random": (
        lambda x: F.dropout(x * 2, 0.0, training=True) * 3 + 1,
        lambda: (X(3, 4),),
    ),
}
"""Programs that compute, with their arguments."""

VIEWS: dict[str, tuple[Program, Callable[[], tuple[Any, ...]]]] = {
    "broadcast": (lambda x, y: (x * y).exp() + y, lambda: (X(9, 5), X(5))),
    "views in": (lambda x: (x.view(3, 4).t() * 2).exp() + 1, lambda: (X(12),)),
    "a view out": (lambda x: (x * 2).exp().view(-1)[2:], lambda: (X(3, 4),)),
    "a value and its view": (
        lambda x: (lambda y: (y, y.t(), y[0]))((x * 2).exp()),
        lambda: (X(3, 4),),
    ),
    "expanded": (
        lambda x: (x.expand(4, 3) * 2).cumsum(0) + 1,
        lambda: (X(1, 3),),
    ),
    "cat and stack": (
        lambda x, y: torch.stack((torch.cat((x, y)) * 2, torch.cat((y, x)))) + 1,
        lambda: (X(3, 2), X(3, 2)),
    ),
    "indexed": (lambda x: (x[:, [0, 2]] * 2).sum(0) + 1, lambda: (X(5, 4),)),
    "embedding": (
        lambda i, w: F.embedding(i, w) * 2 + 1,
        lambda: (torch.randint(0, 10, (4, 3)), X(10, 5)),
    ),
    "no dimensions": (lambda x, y: (x * y).exp() + x, lambda: (X(), X())),
    "permuted": (
        lambda x: (x.permute(2, 0, 1) * 2).exp() + 1,
        lambda: (X(2, 3, 4),),
    ),
    "channels last": (
        lambda x: (x * 2).exp() + 1,
        lambda: (X(2, 3, 4, 5, grad=False).to(memory_format=torch.channels_last),),
    ),
    "written in place": (
        lambda x: x.mul_(2).add_(1).exp() + x,
        lambda: (X(3, 4, grad=False),),
    ),
    "returned twice": (lambda x: (lambda y: (y, y))(x * 2 + 1), lambda: (X(3, 4),)),
    "an argument beside": (lambda x: (x, x * 2 + 1), lambda: (X(3, 4),)),
    "equal results": (
        lambda x: ((x * 2 + 1).clone(), (x * 2 + 1).clone()),
        lambda: (X(3, 4, grad=False),),
    ),
}
"""Programs with views, layouts and results that share memory."""

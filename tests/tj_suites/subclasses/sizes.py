"""Subclasses in programs whose sizes are symbols."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor

from tj_suites.subclasses.calls import given, leaf, nested, one, two
from tj_suites.subclasses.kinds import Counted, Labeled, Lower, Rows, Scaled, Sideways
from tj_suites.subclasses.modules import CASES

__all__ = ["CASES"]

DYNAMIC = {"dynamic": True}
X, G = two(4, 5), two(4, 5, grad=True)


@CASES(X, options=DYNAMIC)
def symbolic_sizes(x: Any) -> Any:
    return (x * x.shape[0]).view(-1).sin()


@CASES(G, options=DYNAMIC)
def symbolic_sizes_with_gradient(x: Any) -> Any:
    return (x @ x.t()).sum(1)


@CASES(G, leaf(5, 3), options=DYNAMIC)
def symbolic_sizes_with_a_plain_tensor(x: Any, w: Any) -> Any:
    return (torch.cat([x, x * 2]).view((x.shape[0] * 2, -1)) @ w).softmax(-1)


@CASES(G, options=DYNAMIC)
def symbolic_sizes_of_results(x: Any) -> Any:
    y = x.t() * 2
    return y.reshape(y.size(0) * y.size(1)) + x.numel() + y.shape[1]


@CASES(nested(4, 5, grad=True), options=DYNAMIC)
def symbolic_sizes_nested(x: Any) -> Any:
    # The sum of what a norm returns has no gradient but for rounding.
    return F.layer_norm(x.sin() * x, (x.shape[1],)).exp().sum(1)


@CASES(one(Sideways, 3, 5, grad=True), one(Lower, 4, 4, grad=True), options=DYNAMIC)
def symbolic_sizes_unlike_those_inside(x: Any, y: Any) -> Any:
    return x * x, (y @ y).sum(1)


@CASES(one(Counted, 4, 5, grad=True), lambda: Labeled(torch.ones(4), "a"), options=DYNAMIC)
def symbolic_sizes_and_contexts(x: Any, y: Any) -> Any:
    return (x * x).cos(), y * y.shape[0] if y.label == "a" else y


@CASES(leaf(7, 4), lambda: Scaled.of(torch.randn(3, 4)), options=DYNAMIC)
def symbolic_sizes_beside_a_weight(x: Any, w: Any) -> Any:
    return F.linear(x, w).relu()


@CASES(given(6), given(6), options=DYNAMIC)
def symbolic_sizes_made_inside(x: Any, y: Any) -> Any:
    z: Any = TwoTensor(x * 2, y) * x.shape[0]
    return z, z.a + z.b


@CASES(X, X, options=DYNAMIC)
def symbolic_sizes_of_views(x: Any, y: Any) -> Any:
    rows = x.unsqueeze(0).expand(y.shape[0], -1, -1)
    return rows * 2, torch.cat(y.split(2, 1)[::-1], 1), x[1:] * y[:-1]


@CASES(X, options=DYNAMIC)
def a_decision_on_a_symbolic_size(x: Any) -> Any:
    return x * 2 if x.shape[0] > 3 else x * 3


@CASES(one(Rows, 4, 5, grad=True), options=DYNAMIC)
def a_symbolic_size_in_the_context(x: Any) -> Any:
    return (x * 2)[1:].sin()

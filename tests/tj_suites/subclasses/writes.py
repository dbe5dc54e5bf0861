"""Programs that write to subclasses, to their inner tensors, and to views of either."""

from __future__ import annotations

from typing import Any

import torch

from tj_suites.subclasses.calls import given, leaf, nested, one, two
from tj_suites.subclasses.kinds import Counted, Labeled, Lower, Swapping
from tj_suites.subclasses.sizes import CASES

__all__ = ["CASES"]

X, G = two(4, 4), two(4, 4, grad=True)


@CASES(X)
def read_before_and_after_a_write(x: Any) -> Any:
    before = x + 1
    x.mul_(2)
    return before, x + 1


@CASES(X)
def read_before_and_after_a_write_inside(x: Any) -> Any:
    before = x + 1
    x.a.mul_(3)
    return before, x + 1


@CASES(nested(3, 4))
def a_nested_argument_is_written(x: Any) -> Any:
    y = x.sin()
    x.add_(y).mul_(2)
    return y * x


@CASES(X, G)
def a_write_brings_the_gradient(x: Any, y: Any) -> Any:
    z = -x
    before = z * 2
    z.add_(y)
    return before, z.sin()


@CASES(one(Counted, 3, 4), lambda: Labeled(torch.ones(3), "a"))
def contexts_stay_where_it_is_written(x: Any, y: Any) -> Any:
    x.add_(1)
    y.mul_(3)
    return x * 2, y + y


@CASES(one(Lower, 4, 4))
def a_write_that_is_lost(x: Any) -> Any:
    y = x + 1
    y.mul_(2)
    return y * 3


@CASES(one(Swapping, 3, 4))
def an_argument_is_given_other_parts(x: Any) -> Any:
    before = x * 2
    x.mul_(3)
    return before, x * 2


@CASES(X, two(4), given(4))
def elements_are_set(x: Any, y: Any, z: Any) -> Any:
    x[0] = y
    x[1:3].copy_(z)
    x[:, 2] = 5
    return x.sum(0)


@CASES(X, X)
def one_part_is_copied_to_the_other(x: Any, y: Any) -> Any:
    z = y.clone()
    z.a.copy_(x.b)
    return z * y


@CASES(G, leaf(4, 4))
def a_value_with_a_gradient_is_written(x: Any, w: Any) -> Any:
    y = x * w
    y.mul_(2)
    y[0].add_(w[0])
    return y.sin()


@CASES(G)
def a_leaf_is_written_without_gradients(x: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x * x


@CASES(two(4, 5), options={"dynamic": True})
def written_with_symbolic_sizes(x: Any) -> Any:
    y = x + 1
    y.mul_(x.shape[0])
    x.add_(y)
    return y.view(-1)

"""Calls on subclasses: arithmetic, products, views, writes, metadata, and what a program makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tj_conformance.oracle.case import Cases
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from tj_suites.subclasses.kinds import (
    Attached,
    Counted,
    Doubling,
    Labeled,
    Loud,
    Lower,
    Named,
    Opaque,
    Packed,
    Scaled,
    Sideways,
    Summing,
)

__all__ = ["CASES", "given", "leaf", "nested", "one", "two"]

CASES = Cases()

Make = Callable[[], Tensor]


def given(*shape: int) -> Make:
    """Make a factory of a tensor without a gradient."""
    return lambda: torch.randn(*shape)


def leaf(*shape: int) -> Make:
    """Make a factory of a leaf that requires a gradient."""
    return lambda: torch.randn(*shape).requires_grad_()


def two(*shape: int, grad: bool = False) -> Make:
    """Make a factory of a TwoTensor."""
    return lambda: TwoTensor(torch.randn(*shape), torch.randn(*shape)).requires_grad_(grad)


def nested(*shape: int, grad: bool = False) -> Make:
    """Make a factory of a TwoTensor of two TwoTensors."""
    return lambda: TwoTensor(two(*shape)(), two(*shape)()).requires_grad_(grad)


def one(kind: Any, *shape: int, grad: bool = False) -> Make:
    """Make a factory of a tensor of ``kind`` that holds another."""
    return lambda: kind(torch.randn(*shape)).requires_grad_(grad)


def plain(kind: Any, *shape: int, grad: bool = False) -> Make:
    """Make a factory of a tensor of a plain subclass ``kind``, without inner tensors."""
    return lambda: torch.randn(*shape).as_subclass(kind).requires_grad_(grad)


X, G = two(4, 4), two(4, 4, grad=True)

# ------------------------------------------------------------------------------- arithmetic


@CASES(X, X)
def product(x: Any, y: Any) -> Any:
    return x * y


@CASES(G, X)
def product_with_gradient(x: Any, y: Any) -> Any:
    return (x * y).sin() + x


@CASES(G, given(4, 4))
def subclass_and_plain(x: Any, y: Any) -> Any:
    return x @ y + y


@CASES(X, leaf(4, 4))
def gradient_of_the_plain(x: Any, y: Any) -> Any:
    return (x * y).sum(0)


@CASES(X, leaf(4, 4))
def a_plain_value_before_a_subclass(x: Any, w: Any) -> Any:
    return (w / 2) * (w / 2).detach() + x * (w / 2)


@CASES(G)
def with_numbers(x: Any) -> Any:
    return 2 * x - x / 3 + x**2


@CASES(G, G)
def linear_layer(x: Any, w: Any) -> Any:
    return F.linear(x, w).relu()


@CASES(G)
def normalized(x: Any) -> Any:
    return F.layer_norm(x, (4,)).softmax(-1)


@CASES(G)
def reduced(x: Any) -> Any:
    return x.sum(), x.mean(1), x.amax(0), x.var(1)


@CASES(G)
def several_results(x: Any) -> Any:
    values, indices = x.max(1)
    first, second = x.chunk(2)
    return values, indices, first * second


@CASES(G)
def one_value_twice(x: Any) -> Any:
    return x * x + x


@CASES(X)
def compared(x: Any) -> Any:
    return torch.where(x > 0, x, -x), (x > 0).to(torch.int64)


@CASES(G)
def under_no_grad(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
    return y + x, y.requires_grad


@CASES(X)
def one_result_twice(x: Any) -> Any:
    y = x + 1
    return y, y, x


@CASES(G)
def detached(x: Any) -> Any:
    return x * x.detach()


@CASES(given(4, 4), given(4, 4), options={"dynamic": True})
def no_subclass(x: Any, y: Any) -> Any:
    return x * y


# ------------------------------------------------------------------------------- nested


@CASES(nested(3, 4), nested(3, 4))
def nested_product(x: Any, y: Any) -> Any:
    return x * y


@CASES(nested(3, 4, grad=True))
def nested_gradient(x: Any) -> Any:
    return (x.sin() * x).sum(1)


@CASES(nested(3, 4, grad=True), two(3, 4))
def nested_and_flat_that_do_not_mix(x: Any, y: Any) -> Any:
    return x * 2, y * 3


@CASES(lambda: TwoTensor(Counted(torch.ones(3)), Counted(torch.zeros(3))))
def another_kind_inside(x: Any) -> Any:
    return (x + 1) * 2


# ------------------------------------------------------------------------------- views, writes


@CASES(G)
def views(x: Any) -> Any:
    return x.t() @ x.view(2, 8).view(4, 4)


@CASES(G, G)
def views_with_gradient(x: Any, y: Any) -> Any:
    return x[1:, ::2], y.unsqueeze(0).expand(3, 4, 4)


@CASES(X)
def a_view_is_returned(x: Any) -> Any:
    return x.t(), x.view(-1)


@CASES(X)
def written_in_place(x: Any) -> Any:
    y = x + 1
    y.mul_(2)
    y.add_(x)
    return y


@CASES(X, X)
def an_argument_is_written(x: Any, y: Any) -> Any:
    x.mul_(y)
    return x + 1


@CASES(X)
def written_through_a_view(x: Any) -> Any:
    y = x.clone()
    y.t()[0].fill_(3)
    return y * 2


@CASES(X)
def an_argument_through_a_view(x: Any) -> Any:
    x.view(-1)[2:5].zero_()
    return x.sum()


@CASES(X)
def inner_tensor_is_read(x: Any) -> Any:
    return x.a * 2, x + x.b


@CASES(X)
def inner_tensor_is_written(x: Any) -> Any:
    x.a.mul_(3)
    return x + 1


@CASES(X, given(4, 4))
def copied_into(x: Any, y: Any) -> Any:
    z = torch.empty_like(x)
    z.copy_(x * 2)
    return z + y


# ------------------------------------------------------------------------------- metadata


@CASES(one(Lower, 4, 4))
def true_type(x: Any) -> Any:
    if x.dtype is torch.float32:
        return x * 2, str(x.dtype)
    return x * 3, ""


@CASES(one(Lower, 4, 4, grad=True), leaf(4, 4))
def lower_inside(x: Any, w: Any) -> Any:
    return (x @ w).sum(1)


@CASES(one(Sideways, 3, 5))
def true_shape(x: Any) -> Any:
    if x.shape[0] == 5 and x.stride() == (3, 1):
        return x + x.shape[1]
    return x - 1


@CASES(one(Sideways, 3, 5, grad=True))
def sideways_gradient(x: Any) -> Any:
    return x * x


@CASES(X)
def kind_is_asked(x: Any) -> Any:
    y = x * 2
    return y + 1 if isinstance(y, TwoTensor) else y - 1, type(y).__name__


@CASES(X)
def sizes_are_numbers(x: Any) -> Any:
    return x.reshape(x.shape[0] * x.size(1)) + x.numel() + x.dim()


@CASES(one(Counted, 3, 4))
def context_of_results(x: Any) -> Any:
    y = (x + 1) * 2
    return y, y.depth


@CASES(one(Counted, 3, 4, grad=True))
def context_and_gradient(x: Any) -> Any:
    return (x * x).cos()


@CASES(lambda: Labeled(torch.ones(3), "a"), lambda: Labeled(torch.ones(3), "b"))
def joined_labels(x: Any, y: Any) -> Any:
    z = x + y
    return z * 2 if z.label == "a+b" else z


# ------------------------------------------------------------------------------- construction


@CASES(leaf(3, 3), leaf(3, 3))
def made_inside(x: Any, y: Any) -> Any:
    return TwoTensor(x * 2, y) @ TwoTensor(y, x)


@CASES(given(3), given(3))
def made_and_taken_apart(x: Any, y: Any) -> Any:
    z: Any = TwoTensor(x, y) * 2
    return z.a + z.b


@CASES(given(3))
def made_with_context(x: Any) -> Any:
    return Labeled(x * 2, "new") + 1


torch._dynamo.allow_in_graph(Attached)


@CASES(given(3), given(1))
def made_with_a_tensor_as_context(x: Any, scale: Any) -> Any:
    return Attached(x * 2, scale).held + 1


@CASES(leaf(3), given(1))
def made_with_a_gradient_and_no_detach(x: Any, scale: Any) -> Any:
    return Attached(x, scale).held * 3


@CASES(X)
def made_of_its_parts(x: Any) -> Any:
    return TwoTensor(x.b, x.a) - x


@CASES(X)
def factories(x: Any) -> Any:
    return torch.zeros_like(x) + 1, x.new_ones(2), torch.full_like(x, 3.0)


# ------------------------------------------------------------------------------- quantized


@CASES(leaf(2, 4), lambda: Scaled.of(torch.randn(3, 4)))
def quantized_weight(x: Any, w: Any) -> Any:
    return F.linear(x, w)


@CASES(given(2, 4), lambda: Scaled.of(torch.randn(3, 4)), leaf(3))
def quantized_with_bias(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w, b).relu(), w.t()


@CASES(one(Packed, 4, 4, grad=True), one(Packed, 4, 4, grad=True))
def product_without_derivative(x: Any, y: Any) -> Any:
    return (x @ y).sin()


# ------------------------------------------------------------------------------- overriding


@CASES(one(Summing, 4, 4))
def a_method_of_its_own(x: Any) -> Any:
    return x.sum(), torch.sum(x)


@CASES(plain(Named, 4), plain(Named, 4, grad=True))
def plain_subclass(x: Any, y: Any) -> Any:
    return (x * y).sin() + y.twice()


@CASES(plain(Named, 4), given(4))
def plain_subclass_and_tensor(x: Any, y: Any) -> Any:
    return x + y, y * 2


@CASES(plain(Doubling, 4), falls_back="another meaning")
def an_operator_of_its_own(x: Any) -> Any:
    return x + 1


@CASES(plain(Loud, 4), falls_back="another meaning")
def a_function_of_its_own(x: Any) -> Any:
    return x.sum(), torch.sum(x), x * 2


@CASES(one(Opaque, 4), falls_back="Opaque")
def nothing_is_said_of_what_it_holds(x: Any) -> Any:
    return x * 2


# ------------------------------------------------------------------------------- errors


@CASES(two(4, 4), two(3, 3))
def sizes_that_do_not_fit(x: Any, y: Any) -> Any:
    return x @ y


@CASES(nested(3), given(3))
def a_constructor_that_raises(x: Any, y: Any) -> Any:
    return TwoTensor(y, y.double())


@CASES(G)
def a_leaf_is_written(x: Any) -> Any:
    x.mul_(2)
    return x

"""Tensor subclasses that hold tensors which require gradients.

Autograd sees the wrapper and not its parts: operators on the wrapper have no gradients with
respect to the parts. A function that reads a part has gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_core import TjWarning, jit
from torch.testing._internal.two_tensor import TwoTensor

PLUGINS = ["torch", "autograd", "subclass"]


@torch._dynamo.allow_in_graph
def held_by(x: Any) -> Any:
    return x.a * 2


@torch._dynamo.allow_in_graph
def made_of(x: Any) -> Any:
    return TwoTensor(x * 2, x * 3)


@torch._dynamo.allow_in_graph
def made_of_detached(x: Any) -> Any:
    return TwoTensor((x * 2).detach(), (x * 3).detach())


@torch._dynamo.allow_in_graph
def without_gradient(x: Any) -> Any:
    """As torchao makes its tensors: the whole requires no gradient, and what it holds does."""
    a, b = x * 2, x * 3
    made = TwoTensor(a.detach(), b.detach())
    made.a, made.b = a, b
    return made


def wrapped(x: Any) -> Any:
    return TwoTensor(x * 2, x * 3)


def plain(x: Any) -> Any:
    return x * 1


def views_of_one_that_is_written(x: Any, w: Any) -> Any:
    """Autograd refuses to name the node of such a view after the write."""
    y = TwoTensor(x.detach(), x.detach()) * w
    y.unbind(0)
    y.relu_()
    return y.sin()


Program = Callable[[Any, Any], Any]

RUNS: dict[str, tuple[Program, Callable[[Any], Any]]] = {
    "an operator on an argument": (lambda m, w: m * m, wrapped),
    "what the result of an operator holds": (lambda m, w: (m * 2).a, wrapped),
    "the same, beside a gradient": (lambda m, w: (m * 2).a * w, wrapped),
    "what an argument holds": (lambda m, w: m.a * w, wrapped),
    "a class that is called": (lambda x, w: TwoTensor(x * 2, x * 3) * w, plain),
    "views of one that is written": (views_of_one_that_is_written, plain),
    "a tensor of detached ones": (lambda x, w: made_of_detached(x) * 2, plain),
    "of detached ones, beside a gradient": (lambda x, w: made_of_detached(x).a * w, plain),
}
"""Captured programs, each with the maker of its first argument from a leaf with gradients."""

AS_IT_IS: dict[str, tuple[Program, Callable[[Any], Any]]] = {
    "a function looks into an argument": (lambda m, w: held_by(m) * w, wrapped),
    "a function makes one": (lambda x, w: made_of(x) * 2, plain),
    "a function makes one, looked into": (lambda x, w: made_of(x).a * w, plain),
    "two functions": (lambda x, w: held_by(made_of(x)) * w, plain),
    "a class that is called, looked into": (lambda x, w: TwoTensor(x * 2, x * 3).a * w, plain),
    "one without a gradient": (lambda x, w: without_gradient(x) * 2, plain),
    "one without a gradient, looked into": (lambda x, w: held_by(without_gradient(x)) * w, plain),
}
"""Programs whose gradients go past the tensor: these run as in eager, with one warning."""


def facts(program: Program, make: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Results of the program: types, values, `requires_grad`, and gradients."""
    values = torch.linspace(-1, 1, 6).reshape(2, 3)
    x, w = values.clone().requires_grad_(), (values + 2).requires_grad_()
    result = program(make(x), w)
    seen = [type(result), result.requires_grad, shown(result)]
    if result.requires_grad:
        ones = torch.ones_like(result)
        found = torch.autograd.grad(result, [x, w], ones, allow_unused=True)
        seen += [None if g is None else shown(g) for g in found]
    return tuple(seen)


def shown(tensor: Any) -> Any:
    """The values of a tensor, or of each that it holds with whether it requires gradients."""
    if not isinstance(tensor, TwoTensor):
        return tensor.tolist()
    return [(part.requires_grad, part.tolist()) for part in (tensor.a, tensor.b)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", RUNS)
def test_programs_on_them(name: str) -> None:
    program, make = RUNS[name]
    assert facts(jit(program, plugins=PLUGINS, check=2), make) == facts(program, make)


@pytest.mark.parametrize("name", AS_IT_IS)
def test_gradients_past_the_tensor_are_those_of_eager(name: str) -> None:
    program, make = AS_IT_IS[name]
    jitted = jit(program, plugins=PLUGINS, check=2, strict=False)
    with pytest.warns(TjWarning, match="requires? gradients|requires_grad") as warned:
        found = facts(jitted, make)
    assert found == facts(program, make)
    assert len(warned) == 1


def test_what_an_argument_holds_may_require_gradients_later() -> None:
    def program(m: Any, w: Any) -> Any:
        return held_by(m) * w

    jitted = jit(program, plugins=PLUGINS, check=2, strict=False)
    assert facts(jitted, made_of_detached) == facts(program, made_of_detached)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TjWarning)
        assert facts(jitted, wrapped) == facts(program, wrapped)


def test_a_gradient_of_a_plain_tensor_may_be_of_a_subclass() -> None:
    """As of ``b`` in ``a * b``, where ``a`` is of a subclass: only PyTorch's autograd knows."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * 6 + b / 2

    found = []
    for wrap in (lambda f: f, jit):
        a = TwoTensor(*(torch.ones(3, requires_grad=True) for _ in range(2)))
        b = torch.ones(3, requires_grad=True)
        wrap(f)(a, b).sum().backward()
        found.append((a.grad, b.grad))
    (a, b), (mine_a, mine_b) = found
    assert type(mine_a) is type(a) is TwoTensor
    assert type(mine_b) is type(b) is TwoTensor
    assert torch.equal(mine_b.a, b.a)
    assert torch.equal(mine_b.b, b.b)

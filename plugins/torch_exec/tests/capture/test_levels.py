"""Transforms of torch.func: their levels are left, and calls after them are known."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal

pytestmark = pytest.mark.sampled(16)

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def test_levels_are_left_when_a_program_raises() -> None:
    def f(x, index):
        return torch.func.vmap(lambda row: torch.func.grad(lambda a: a[index].sum())(row))(x)

    jitted = tj.jit(f)
    jitted(X, torch.tensor([0, 1]))
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    with pytest.raises(IndexError):
        jitted(X, torch.tensor([0, 9]))
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == depth
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()
    assert not torch._C._functorch.get_inplace_requires_grad_allowed()
    assert_equal(jitted(X, torch.tensor([0, 1])), f(X, torch.tensor([0, 1])))


FORWARD: dict[str, Callable[..., Any]] = {
    "a number": lambda x, i: torch.func.jvp(lambda y: y[i] * y.sum().item(), (x,), (x.cos(),)),
    "a shape": lambda x, i: torch.func.jvp(lambda y: y.nonzero() * y[i].sum(), (x,), (x,)),
    "a jacobian": lambda x, i: torch.func.jacfwd(lambda y: y[i] * y.sum().item())(x),
    "a hessian": lambda x, i: torch.func.hessian(lambda y: (y[i] ** 2).sum() * y.sum().item())(x),
}


@pytest.mark.usefixtures("lenient")
@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_that_depends_on_data(name: str) -> None:
    """PyTorch has one level of forward-mode AD per process, which a failed attempt must leave."""
    f = FORWARD[name]
    jitted = tj.jit(f)
    for x, i in (X, 1), (X[:2] * 3, 0), (X + 1, 2), (X, 9), (X, 1):
        index = torch.tensor(i)
        if i == 9:
            with pytest.raises(IndexError):
                jitted(x, index)
        else:
            assert_equal(jitted(x, index), f(x, index))
        with torch.autograd.forward_ad.dual_level():  # raises if there is one
            pass


def test_calls_after_a_level_are_known_again() -> None:
    def f(x):
        value, pullback = torch.func.vjp(lambda y: y[y > 0].sin(), x)
        return pullback(value)[0].cos()

    jitted = tj.jit(f)
    jitted(X)
    transformed, *_, cos = tj.last_trace(jitted).calls
    assert transformed.symbol.qualname == "tj.transformed"
    assert cos.body is not None


def test_disabled_functions_are_left_alone() -> None:
    @torch.compiler.disable
    def secret(x):
        return x.sin() * 2

    jitted = tj.jit(lambda x: secret(x) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)  # the program asks for this graph break
        assert_equal(jitted(X), X.sin() * 2 + 1)


def test_gradients_in_inference_mode_are_not_of_that_mode() -> None:
    """Autograd may use them later; it refuses tensors of inference mode."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def cube(x: torch.Tensor) -> torch.Tensor:
            return x.pow(3).sum()

        value, tangent = torch.func.jvp(torch.sin, (x,), (x,))
        gradients = torch.func.vmap(torch.func.grad(cube))(x)
        return value, tangent, gradients, torch.func.vmap(cube)(x), x * 2

    jitted, x = tj.jit(f), torch.rand(3, 3)
    for _ in range(2):
        with torch.inference_mode():
            found, expected = jitted(x), f(x)
        assert [t.is_inference() for t in found] == [t.is_inference() for t in expected]
        assert all(map(torch.equal, found, expected))
    w = torch.ones(3, 3, requires_grad=True)
    (w * found[2]).sum().backward()
    assert w.grad is not None
    assert torch.equal(w.grad, expected[2])

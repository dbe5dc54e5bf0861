"""Transforms of torch.func: their levels are left, and calls after them are known."""

from __future__ import annotations

import warnings

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


def test_calls_after_a_level_are_known_again() -> None:
    def f(x):
        value, pullback = torch.func.vjp(torch.sin, x)
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

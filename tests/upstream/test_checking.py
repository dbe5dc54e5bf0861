"""The comparison that takes the place of Inductor's check of a model: it sees what differs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_suites.upstream.checking import Check, Tolerance
from torch.testing._internal.common_utils import TestCase


def check(
    jit: Callable[[Any], Any], model: Any, *inputs: Any, gradients: bool = False, whole: bool = True
) -> None:
    """Check a model that ``jit`` compiles."""
    near = Tolerance()
    Check(TestCase(), jit, model, inputs, {}, near, near).run(gradients=gradients, whole=whole)


def changing(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    """A compiler of programs whose result is another."""
    return lambda function: lambda *args: change(function(*args))


class _Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        return tangents[0] * 3


def _as_it_is(function: Any) -> Any:
    def run(*args: Any) -> Any:
        warnings.warn(tj.TjWarning("it runs as it is"), stacklevel=2)
        return function(*args)

    return run


def written(x: torch.Tensor) -> torch.Tensor:
    """Write to the argument."""
    return x.mul_(2) + 1


def _on_a_copy(function: Any) -> Any:
    return lambda x: function(x.clone())


X = torch.randn(3, 4, dtype=torch.float64)

WRONG: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "value": (changing(lambda x: x + 1e-3), torch.sin),
    "data type": (changing(torch.Tensor.float), torch.sin),
    "strides": (changing(lambda x: x.t().contiguous().t()), torch.sin),
    "type": (lambda f: lambda x: [f(x)[0]], lambda x: (x.sin(),)),
    "gradient": (changing(_Tripled.apply), torch.sin),
    "needs no gradient": (changing(torch.Tensor.detach), torch.sin),
    "argument": (_on_a_copy, written),
    "warning": (_as_it_is, torch.sin),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_fails(name: str) -> None:
    jit, model = WRONG[name]
    with pytest.raises(AssertionError):
        check(jit, model, X)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_right_passes(name: str) -> None:
    check(lambda function: function, WRONG[name][1], X)


def test_a_warning_is_allowed_where_the_model_has_graph_breaks() -> None:
    check(_as_it_is, torch.sin, X, whole=False)


def test_fused_programs_of_low_precision_may_round_less() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x + 300) - 300

    def in_float(function: Any) -> Any:
        return lambda x: function(x.float()).to(x.dtype)

    low = torch.linspace(0, 1, 12).bfloat16()
    assert not torch.equal(model(low), in_float(model)(low))
    check(in_float, model, low)
    with pytest.raises(AssertionError):
        check(changing(lambda x: x + 4), model, low)


def test_programs_that_amplify_rounding_may_be_as_far_from_double_precision_as_eager() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x + 1000) - 1000

    def otherwise(function: Any) -> Any:
        return lambda x: x + (1000 - 1000) if x.dtype is torch.float32 else function(x)

    x = torch.linspace(0, 1, 12)
    assert (model(x) - x).abs().max() > 1e-5
    check(otherwise, model, x)
    with pytest.raises(AssertionError):
        check(changing(lambda x: x + 1e-3), model, x)


def test_numbers_are_compared_where_tensors_are_as_near_as_eager() -> None:
    def model(x: torch.Tensor) -> Any:
        return (x + 1000) - 1000, x.dim()

    def counting(function: Any) -> Any:
        return lambda x: (x.clone(), 3)

    with pytest.raises(AssertionError):
        check(counting, model, torch.linspace(0, 1, 12))


def test_generators_are_compared_by_their_state() -> None:
    def model(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(4, generator=generator)

    def without_a_trace(function: Any) -> Any:
        return lambda x, generator: function(x, generator.clone_state())

    check(lambda function: function, model, X, torch.Generator())
    with pytest.raises(AssertionError):
        check(without_a_trace, model, X, torch.Generator())


def test_a_model_with_state_has_its_own_for_eager() -> None:
    check(lambda module: module, torch.nn.BatchNorm1d(4), X.float(), gradients=True)

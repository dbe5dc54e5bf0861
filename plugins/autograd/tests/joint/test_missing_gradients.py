"""Backwards that users wrote, of Functions and of custom operators: presence of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.own import WAYS
from tj_conformance.oracle.compare import assert_equal
from tj_suites.gradients.own_backwards import Program, function

X = torch.tensor([-1.0, 0.5, 2.0])


ELSEWHERE = torch.full((3,), 7.0)

# Dynamo makes one where it captures a call of a Function, and looks at ``.grad`` of values.
pytestmark = [
    pytest.mark.sampled(8),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.skipif(
        torch.__version__ < (2, 11), reason="PyTorch 2.10: Functions are left to PyTorch"
    ),
]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Reset torch.compile between programs, which share their code."""
    torch._dynamo.reset()
    return


def keep(ctx: Any, x: torch.Tensor) -> None:
    ctx.kept = x.sin()


def saved(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return ctx.saved_tensors[0]


nothing = function(lambda ctx, x: None, lambda ctx, g: None)


sine = function(lambda ctx, x: ctx.save_for_backward(x.sin()), saved)

FUNCTIONS: dict[str, Program] = {
    "an intermediate value": sine,
    "a mask": function(lambda ctx, x: ctx.save_for_backward((x > 0).float()), saved),
    "a constant made in the forward": function(
        lambda ctx, x: ctx.save_for_backward(torch.ones_like(x) * 4), saved
    ),
    "a constant made in the backward": function(
        lambda ctx, x: None, lambda ctx, g: torch.full((3,), 4.0)
    ),
    "an argument": function(lambda ctx, x: ctx.save_for_backward(x), saved),
    "an attribute": function(keep, lambda ctx, g: ctx.kept),
    "a global": function(lambda ctx, x: None, lambda ctx, g: ELSEWHERE),
    "nothing": nothing,
}


@torch.library.custom_op("tj_tests::known_slope", mutates_args=())
def known_slope(x: torch.Tensor) -> torch.Tensor:
    return x * 2


known_slope.register_fake(torch.empty_like)


known_slope.register_autograd(
    saved, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0].cos())
)

FUNCTIONS["what a custom operator saved"] = known_slope

PROGRAMS: dict[str, Callable[[Program], Program]] = {
    "alone": lambda f: lambda x, z: f(x),
    "beside another": lambda f: lambda x, z: (f(x), z.sin()),
    "in the middle": lambda f: lambda x, z: f(x + z * 1).exp().sum(),
    "before one without gradient": lambda f: lambda x, z: (nothing(f(x)), z * 2),
    "far before one without gradient": lambda f: lambda x, z: nothing(f(x).sin()) + z,
    "twice": lambda f: lambda x, z: f(x) * f(z) + f(x.cos()),
}


def gradients(f: Program, which: int) -> Any:
    """The gradients of the ``which``-th output, as values; None where there is none."""
    x, z = X.clone().requires_grad_(), X.flip(0).requires_grad_()
    found = f(x, z)
    output = found[which] if isinstance(found, tuple) else found
    given = torch.autograd.grad(output.sum(), (x, z), allow_unused=True)
    return [g if g is None else g.detach() for g in given]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_is_missing_where_autograd_has_none(name: str, program: str) -> None:
    f = PROGRAMS[program](FUNCTIONS[name])
    check(WAYS["torch,autograd"](f), f, program)


# The way that is left out is that of the programs above.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "torch,autograd"])
def test_a_gradient_is_missing_in_all_ways_to_compile(way: str) -> None:
    for name, made in FUNCTIONS.items():
        program = PROGRAMS["far before one without gradient"](made)
        check(WAYS[way](program), program, name)
        torch._dynamo.reset()


def check(compiled: Program, f: Program, program: str) -> None:
    """Compare the gradients of each output."""
    for which in (1, 0) if "before" in program or "beside" in program else (0,):
        assert_equal(gradients(compiled, which), gradients(f, which))


def test_what_is_missing_is_known_where_zeros_stand_for_a_tangent() -> None:
    """There are more layouts of tangents than backward programs."""

    def f(x, z):
        return sine(x), z.sin(), z @ z

    jitted = tj.jit(f, plugins=["torch", "autograd"])
    for n in range(2, 14):
        x, z = X.clone().requires_grad_(), X.clone().requires_grad_()
        tangent = torch.arange(3.0 * n)[::n]
        for program in (f, jitted):
            outputs = program(x, z)
            ours = torch.autograd.grad(outputs[0], (x, z), tangent, allow_unused=True)
            outputs = program(x, z)
            theirs = torch.autograd.grad(outputs[1], (x, z), tangent, allow_unused=True)
            assert_equal(ours, (X.sin(), None))
            assert_equal(theirs, (None, tangent * X.cos()))

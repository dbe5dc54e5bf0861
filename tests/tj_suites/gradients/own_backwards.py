"""Functions and operators with a backward of their own, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tj_conformance.oracle.compare import assert_equal

X = torch.tensor([-1.0, 0.5, 2.0])
ELSEWHERE = torch.full((3,), 7.0)
Program = Callable[..., Any]


def function(save: Program, backward: Program) -> Program:
    """Make a Function that doubles; ``save`` saves values, ``backward`` is its backward."""

    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        save(ctx, x)
        return x * 2

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("Doubled", (torch.autograd.Function,), members)
    apply: Program = made.apply
    return apply


def keep(ctx: Any, x: torch.Tensor) -> None:
    ctx.kept = x.sin()


def saved(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = ctx.saved_tensors[0]
    return found


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


def check(compiled: Program, f: Program, program: str) -> None:
    """Compare the gradients of each output."""
    for which in (1, 0) if "before" in program or "beside" in program else (0,):
        assert_equal(gradients(compiled, which), gradients(f, which))

"""Backwards that users wrote, in all ways to compile, and where zeros stand for a tangent."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.own import WAYS
from tj_conformance.oracle.compare import assert_equal
from tj_suites.gradients.marks import OWN_BACKWARDS
from tj_suites.gradients.own_backwards import FUNCTIONS, PROGRAMS, X, check, sine

pytestmark = OWN_BACKWARDS


# The way that is left out is that of the programs above.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "torch,autograd"])
def test_a_gradient_is_missing_in_all_ways_to_compile(way: str) -> None:
    for name, made in FUNCTIONS.items():
        program = PROGRAMS["far before one without gradient"](made)
        check(WAYS[way](program), program, name)
        torch._dynamo.reset()


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

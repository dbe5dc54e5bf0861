"""Gradients of parts of calls: rules and pairs for what is inside of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_suites.gradients.parts import (
    ADDMM,
    NORM,
    RAN,
    SOFTMAX,
    attention,
    check,
    decomposed,
    dropped,
    pair,
    parameters,
    rows,
    rule,
)
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(4)


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


LINEAR, DROPOUT = "torch.nn.functional.linear", "torch.nn.functional.dropout"


WEIGHTS = [(5, 3, 8), (24, 8), (24,), (8, 8), (8,)]

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], str, int]] = {
    "linear": (lambda x, w, b: F.linear(x.sin(), w, b).sin(), [(2, 3, 4), (5, 4), (5,)], ADDMM, 1),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b) * 2, [(3, 4), (4,), (4,)], NORM, 1),
    "softmax": (lambda x: F.softmax(x * 2, -1), [(3, 4)], SOFTMAX, 1),
    "attention": (attention, WEIGHTS, ADDMM, 2),
    "attention, softmax": (attention, WEIGHTS, SOFTMAX, 1),
    "attention with dropout": (dropped, WEIGHTS, ADDMM, 2),
    "attention, linear": (attention, WEIGHTS, LINEAR, 2),
    "attention with dropout, linear": (dropped, WEIGHTS, LINEAR, 2),
    "normalize": (lambda x: F.normalize(x).sin(), [(3, 4)], "torch.div", 1),
    "a module": (
        lambda x, w, b, v: F.relu(F.linear(F.layer_norm(x, (4,)), w, b)) @ v,
        [(3, 4), (5, 4), (5,), (5, 2)],
        ADDMM,
        1,
    ),
}


@pytest.mark.parametrize("how", ["rule", "pair"])
@pytest.mark.parametrize("case", CASES)
def test_a_part_has_a_gradient(case: str, how: str) -> None:
    fn, shapes, key, count = CASES[case]
    made = rule(key) if how == "rule" else pair("mine", key)
    jitted = check(fn, parameters(*shapes), made)
    owner = "Rules" if how == "rule" else "mine"
    assert set(decomposed(jitted)) == {f"decomposed: {key} of {owner}"}
    assert [whose for r, whose, _ in rows(jitted) if r == key] == [owner] * count
    assert RAN.count("mine back") == (0 if how == "rule" else count)
    assert RAN.count("mine") >= RAN.count("mine back")  # division may run again in the backward


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_parts_against_finite_differences(case: str) -> None:
    fn, shapes, key, _ = CASES[case]
    args = parameters(*shapes, dtype=torch.float64)
    jitted = tj.jit(fn, session=tj.Session([rule(key), "torch", "autograd"]))

    def seeded(*args: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return jitted(*args)

    assert torch.autograd.gradcheck(seeded, args, fast_mode=True)


def test_second_derivatives_of_decomposed_calls() -> None:
    """They are PyTorch's, of the program as it was."""
    fn, shapes, key, _ = CASES["layer_norm"]
    args = parameters(*shapes, dtype=torch.float64)
    jitted = tj.jit(fn, session=tj.Session([rule(key), "torch", "autograd"]))
    assert torch.autograd.gradgradcheck(jitted, args, fast_mode=True)

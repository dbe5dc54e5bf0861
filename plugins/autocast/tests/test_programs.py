"""Programs under autocast against eager: values, strides, gradients, writes, errors; to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_conformance.models import MODELS, step
from tj_conformance.oracle.compare import assert_equal
from tj_conformance.sampling import FULL
from tj_suites.autocast.case import evaluate
from tj_suites.autocast.lists import listed, sampled
from tj_suites.autocast.programs import PROGRAMS

if TYPE_CHECKING:
    from tj_conformance.oracle.case import Case, Verdict

pytestmark = pytest.mark.sampled(10)

STAY = {
    "written_under_no_grad_by_data": "what it does to memory is not known",
    "given_out": "a result that is written to another type has no body",
    "a_leaf_made_inside": "what makes a leaf is not known",
    "in_a_hook": "a call of the hook's function, later",
    "gated": "nn.GRU is differentiated by PyTorch as it runs",
    "numbers": "a number off a tensor is known when it runs",
}
"""Programs with calls that stay under autocast, and why."""

ROUNDING = {"prod.1": "PyTorch's formula for the gradient depends on data"}
"""Samples whose gradients differ outside of autocast, too."""

TYPES = (torch.bfloat16, torch.float16)


def same(verdict: Verdict) -> None:
    """Fail where a program differs from eager."""
    assert not verdict.differences, str(verdict)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str) -> None:
    case = PROGRAMS[name]
    verdict = evaluate(case)
    same(verdict)
    assert bool(verdict.fallbacks) == bool(case.falls_back)
    assert all(case.falls_back in reason for reason in verdict.fallbacks)
    raises = "do_not_fit" in name or name == "a_leaf_written_with_gradients"
    assert raises or bool(verdict.left) == (name in STAY)


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 50
    assert sum(bool(case.falls_back) for case in PROGRAMS.values()) <= 4


LISTED = {f"{t}.{name}": case for t in TYPES for name, case in listed(t).items()}


@pytest.mark.parametrize("name", LISTED)
def test_an_operation_of_pytorchs_lists(name: str) -> None:
    verdict = evaluate(LISTED[name])
    same(verdict)
    assert not verdict.fallbacks
    assert not verdict.left


def samples() -> dict[str, Case]:
    """Samples of op_db: two of each operation in both types, or one of some in one."""
    found = {f"{t}.{n}": c for t in TYPES[: 1 + FULL] for n, c in sampled(t, 1 + FULL).items()}
    return {n: c for i, (n, c) in enumerate(found.items()) if FULL or i % 32 == 0}


@pytest.mark.slow
def test_samples_of_operations_with_a_policy() -> None:
    for name, case in samples().items():
        if name.partition(".")[2].partition(".")[2] not in ROUNDING:
            same(evaluate(case))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in MODELS if FULL or n in ("llama", "bert")])
def test_a_training_step_of_a_model(name: str) -> None:
    pytest.importorskip("transformers")
    model = MODELS[name].build().train()
    batch = MODELS[name].batch()
    jitted = tj.jit(model)

    def within(run: Any) -> Any:
        def call(**kwargs: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return run(**kwargs)

        return call

    for seed in range(2):
        expected = step(model, within(model), batch, seed)
        assert_equal(step(model, within(jitted), batch, seed), expected)
    stats = tj.stats(jitted)
    assert (stats.misses, stats.hits, stats.fallbacks) == (1, 1, ())
    assert tj.explain(jitted).declined == ()

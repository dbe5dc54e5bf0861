"""Gradients of PyTorch's `op_db` and `module_db` through traces, eager as the oracle, bit for bit.

The default run takes a sample; ``TJ_FULL=1`` takes all. `tj_conformance.gradients.tally` gives
figures of whole runs.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients import known, tally
from tj_conformance.gradients.gradients import (
    differentiable_operations,
    run_gradients,
    run_second,
)
from tj_conformance.gradients.numerical import run_gradcheck
from tj_conformance.known import disagreements
from tj_conformance.module_db import modules, run_module
from tj_conformance.op_db import full_name
from tj_conformance.result import Kind
from tj_conformance.tally import Part

FULL = os.environ.get("TJ_FULL") == "1"
COUNT = 3 if FULL else 2
jit = functools.partial(tj.jit, dynamic=False)


def sample(dtype: torch.dtype, step: int, *, second: bool = False) -> list[Any]:
    """Every ``step``-th operation, from another on for each data type."""
    found = differentiable_operations(dtype, second=second)
    return found if FULL else found[dtype.itemsize :: step]


def assert_known(result: Any, case: str) -> None:
    assert list(disagreements(result, known.OPERATIONS, case, complete=False)) == []


@pytest.mark.parametrize("op", sample(torch.float32, 9), ids=full_name)
def test_gradients(op: Any) -> None:
    assert_known(run_gradients(op, torch.float32, COUNT, jit=jit), "first float32")


@pytest.mark.parametrize("op", sample(torch.complex64, 29), ids=full_name)
def test_complex_gradients(op: Any) -> None:
    assert_known(run_gradients(op, torch.complex64, COUNT, jit=jit), "first complex64")


@pytest.mark.parametrize("op", sample(torch.float32, 37, second=True), ids=full_name)
def test_second_derivatives(op: Any) -> None:
    assert_known(run_second(op, torch.float32, COUNT, jit=jit), "second float32")


@pytest.mark.parametrize("op", sample(torch.float64, 43), ids=full_name)
def test_finite_differences(op: Any) -> None:
    assert_known(run_gradcheck(op, torch.float64, COUNT, jit=jit), "gradcheck float64")


@pytest.mark.parametrize("info", modules() if FULL else modules()[::8], ids=lambda m: m.name)
def test_gradients_of_a_module(info: Any) -> None:
    """Parameters and buffers included."""
    result = run_module(info, training=True)
    assert [p for p in result.problems if p.kind is not Kind.BREAK] == []


def test_a_wrong_gradient_is_found() -> None:
    op = next(op for op in differentiable_operations(torch.float64) if op.name == "sin")

    def wrong(fn: Any) -> Any:
        return jit(lambda x: fn(x) + 0.5 * (x - x.detach()))

    for run, kind in ((run_gradients, Kind.RESULT), (run_second, Kind.RESULT)):
        result = run(op, torch.float64, 1, jit=wrong)
        assert result.kinds == {kind} and result.samples == 1
    assert run_gradcheck(op, torch.float64, 1, jit=wrong).kinds == {Kind.RESULT}


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = differentiable_operations(torch.float32)
    index = [full_name(op) for op in wanted].index("sin")
    assert tally.main([f"first:float32:{index}/{len(wanted)}", "--samples", "2"]) == 0
    assert capsys.readouterr().out == "| first float32 | 1 | 1 | 0 | 0 | 0 |\n"
    assert Part.parse("2/8") == Part(2, 8)

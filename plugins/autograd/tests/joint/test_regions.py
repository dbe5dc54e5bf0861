"""Gradients of programs with Functions and custom operators inside."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients import regions
from tj_conformance.gradients.regions import (
    FUNCTIONS,
    OPERATORS,
    REFUSED,
    Program,
    inputs,
    results,
)
from tj_conformance.oracle.versions import left_to_this_version
from tj_suites.gradients.regions import assert_equal, check_gradients

pytestmark = pytest.mark.sampled(4)

Tensor = torch.Tensor


@pytest.mark.sampled(16)
# Eager's torch.cond compiles itself, and looks at the gradients of what it is given.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("f", [*FUNCTIONS, *OPERATORS], ids=lambda f: f.__name__)
def test_gradients_are_eagers_and_on_the_trace(f: Program) -> None:
    check_gradients(f)


def test_a_backward_that_writes_is_left_to_pytorch() -> None:
    def run(fn: Any) -> Tensor:
        x, _ = inputs()
        notes = torch.zeros(2)
        fn(x, notes).sum().backward()
        return notes

    jitted = tj.jit(lambda x, notes: regions.Noted.apply(x, notes))
    assert torch.equal(run(jitted), torch.ones(2))
    assert torch.equal(run(regions.Noted.apply), torch.ones(2))
    if not left_to_this_version(tj.stats(jitted).fallbacks):
        (_, answer), *_ = tj.explain(jitted).declined
        assert "tj.autograd_function" in answer.reason


@pytest.mark.parametrize("name", ["scaled", "set_up", "both_of_two", "custom", "repeated"])
def test_one_program_for_many_sizes(name: str) -> None:
    f = getattr(regions, name)
    jitted = tj.jit(f, dynamic=True)
    for rows in (3, 5, 9):
        found = []
        for fn in (jitted, f):
            torch.manual_seed(rows)
            x = torch.randn(rows, 4, requires_grad=True)
            w = torch.randn(4, 4, requires_grad=True)
            returned = fn(x, w)
            out = returned[0] if isinstance(returned, tuple) else returned
            out.sum().backward()
            found.append([out, x.grad, w.grad])
        assert_equal(*found)
    if left_to_this_version(tj.stats(jitted).fallbacks):
        return
    assert tj.stats(jitted).entries == 1
    assert "JOINT" in {t.stage.name for t in tj.last_traces(jitted)}


def test_what_a_function_saves_is_checked() -> None:
    """Arguments that the backward reads must not be written before it."""

    def run(fn: Any) -> None:
        x, w = inputs()
        y = x * 1
        out = fn(y, w)
        with torch.no_grad():
            y.add_(1)
        out.sum().backward()

    for fn in (regions.of_one_function, tj.jit(regions.of_one_function)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(fn)


def test_rules_and_executors_see_what_is_inside() -> None:
    jitted = tj.jit(regions.scaled)
    results(jitted)
    if left_to_this_version(tj.stats(jitted).fallbacks):
        pytest.skip("PyTorch 2.10: Functions are left to PyTorch")
    forward, backward = (tj.last_trace(jitted, which) for which in ("forward", "backward"))
    inside = {c.symbol.qualname for c in forward.calls if c.parent}
    assert "aten.mm.default" in inside
    back = [c for c in backward.calls if c.symbol.qualname == "aten.mm.default"]
    assert len(back) == 2
    assert all(c.source.file == regions.__file__ for c in back if c.source)


@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_what_eager_refuses_is_refused(f: Program) -> None:
    said = []
    for fn in (f, tj.jit(f)):
        with pytest.raises(RuntimeError) as caught:
            results(fn)
        said.append(str(caught.value).partition("[")[0])
    assert said[0][:60] == said[1][:60]


def test_identity_and_versions_of_what_a_function_wrote() -> None:
    """The result is the argument itself, if the argument is the caller's."""
    found = []
    for fn in (regions.dirty_alone, tj.jit(regions.dirty_alone)):
        x, _ = inputs()
        y = x * 1
        out = fn(y)
        out.sum().backward()
        found.append((out is y, y._version, type(out.grad_fn).__name__ != "NoneType", x.grad))
    assert found[0][:3] == found[1][:3]
    assert torch.equal(found[0][3], found[1][3])

"""The same programs in functional form, with gradients by PyTorch's autograd.

Autograd then sees other calls than the user's: it does not refuse gradients for writes to tensors
that the user's calls would have saved, and views of results have grad_fns of other classes. All
else is as in eager.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.cases import cases_in, in_functional_form, run_case
from tj_conformance.programs.findings import FOUND
from tj_conformance.programs.fuzz import Figures, chunks, compare_programs
from tj_conformance.programs.texts import run_text
from tj_conformance.sampling import FULL
from torch import fx

pytestmark = pytest.mark.sampled(12)

COUNT = int(os.environ.get("TJ_FUZZ", "5000" if FULL else "60"))
FRONTEND = os.environ.get("TJ_FUZZ_FRONTEND")

OTHER_CLASS = {"value_written_after_a_view", "product_of_a_batch_is_written"}
"""Programs that return a view made before a write to its base, a result."""


@functools.cache
def session() -> tj.Session:
    return tj.Session(["torch"], overrides={"torch": {"functional": "always"}})


FIGURES = Figures()
"""Figures of the compared programs."""


def functional(fn):
    return tj.jit(fn, session=session(), frontend=FRONTEND)


CASES = [
    (case, kind)
    for case, kind in cases_in(
        Path(__file__).parent, but=(Path(__file__).name, "test_scoreboard.py")
    )
    if kind in in_functional_form(case)
]


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("case", "kind"), CASES, ids=[f"{c.name}-{k}" for c, k in CASES])
def test_case(case, kind) -> None:
    ignore = ("grad_fn",) if case.name in OTHER_CLASS else ()
    FIGURES.add(run_case(case, kind, jit=functional, lenient=True, ignore=ignore))


@pytest.mark.parametrize("name", FOUND)
def test_found_before(name) -> None:
    report = run_text(FOUND[name], functional, lenient=True, ignore=("grad_fn",))
    assert report.ok, f"differs from eager:\n{report}\n\n{FOUND[name]}"


def refused_view(a):
    t = a * 2
    s = t.split(1)[0]
    t.add_(1)
    s.view(-1)
    return t


def refused_argument(a):
    a.detach().add_(1)
    a.view(-1)


@pytest.mark.parametrize("program", [refused_view, refused_argument])
def test_what_nobody_needs_is_refused(program) -> None:
    jitted = tj.jit(fx.symbolic_trace(program), frontend="fx", session=session())
    for f in (program, jitted):
        with pytest.raises(RuntimeError, match="of a function that returns multiple views"):
            f(torch.ones(2, 3, requires_grad=True).unbind(0)[0])


def test_an_argument_that_nobody_refuses_is_used_in_functional_form() -> None:
    jitted = tj.jit(fx.symbolic_trace(refused_argument), frontend="fx", session=session())
    x = torch.ones(2, requires_grad=True) * 1
    assert jitted(x) is None
    assert torch.equal(x, torch.full((2,), 2.0))
    assert x._version == 1
    assert tj.last_trace(jitted, stage="FUNCTIONAL")


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "count"), chunks(COUNT))
def test_made_up_programs(chunk, count) -> None:
    options = {"figures": FIGURES, "lenient": True, "ignore": ("grad_fn",)}
    compare_programs(functional, seed=1000 + chunk, count=count, **options)


def test_most_programs_are_functional() -> None:
    if FIGURES.entries < 30:
        pytest.skip("too few programs ran in this process, with TJ_FULL=1 all do")
    print(FIGURES, FIGURES.declined)
    assert FIGURES.with_bases >= FIGURES.entries // 400
    assert sum(FIGURES.declined.values()) < 0.3 * FIGURES.entries, FIGURES.declined

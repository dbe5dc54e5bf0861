"""Random programs against eager: 60 in every run, more with ``TJ_FULL=1`` or ``TJ_FUZZ=number``.

``TJ_FUZZ_FRONTEND`` is the frontend that they go through; 120 more, or ``TJ_FUZZ_FX``, go through
``fx``. A program that differs is printed as a test.
"""

from __future__ import annotations

import os

import pytest
import tj_core as tj
from tj_conformance.programs.findings import FOUND
from tj_conformance.programs.fuzz import (
    CHUNK,
    Figures,
    Untraceable,
    chunks,
    compare_programs,
    through_fx,
)
from tj_conformance.programs.texts import run_text
from tj_conformance.sampling import FULL

COUNT = int(os.environ.get("TJ_FUZZ", "5000" if FULL else "60"))
COUNT_FX = int(os.environ.get("TJ_FUZZ_FX", "50000" if FULL else "120"))
FRONTEND = os.environ.get("TJ_FUZZ_FRONTEND")


def jit(fn):
    return tj.jit(fn, frontend=FRONTEND)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("way", [jit, through_fx()], ids=["", "fx"])
def test_found_before(name, way) -> None:
    try:
        report = run_text(FOUND[name], way)
    except Untraceable as error:
        pytest.skip(str(error))
    assert report.ok, f"differs from eager:\n{report}\n\n{FOUND[name]}"


FIGURES = Figures()
"""Figures over all chunks, to check that the programs are worth running."""


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "count"), chunks(COUNT))
def test_made_up_programs(chunk, count) -> None:
    compare_programs(jit, seed=chunk, count=count, figures=FIGURES)


# Autograd forgets that a leaf was written through a view of its data when another view is made of
# it: `b.transpose(0, -1)`, which nothing needs and tj leaves out. Eager raises without that, too.
UNNEEDED = pytest.mark.xfail(strict=True, reason="a view that nothing needs changes an error")
THROUGH_FX = [
    pytest.param(*of, marks=UNNEEDED if of == (112, CHUNK) else ()) for of in chunks(COUNT_FX)
]


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "count"), THROUGH_FX)
def test_made_up_programs_through_fx(chunk, count) -> None:
    compare_programs(through_fx(), seed=3000 + chunk, count=count)


def test_the_programs_were_worth_running() -> None:
    """Most are captured whole, and some raise; else the generator is broken."""
    if not FIGURES.programs:
        pytest.skip("no made-up program was run")
    print(FIGURES)
    assert FIGURES.raising >= max(1, FIGURES.programs // 100)
    assert FIGURES.falling_back <= FIGURES.programs // 2


def test_a_difference_is_found_and_printed() -> None:
    """The fuzzer can fail, and prints a test that fails."""

    def forgets_writes(fn):
        return lambda *args: fn(*(a.clone() for a in args))

    with pytest.raises(AssertionError) as found:
        compare_programs(forgets_writes, seed=0, count=200)
    text = str(found.value)
    text = text[text.index("import torch") : text.index('== "equal"') + 10]
    space = {"__name__": "printed"}
    exec(compile(text, "<printed>", "exec"), space)
    space["test_program"]()  # under tj the program is right
    space["check"] = lambda make, scenes: "wrong"
    with pytest.raises(AssertionError):
        space["test_program"]()

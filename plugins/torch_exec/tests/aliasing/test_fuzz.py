"""Made-up programs against eager: 500 in every run, more with ``TJ_FULL=1`` or ``TJ_FUZZ=number``.

``TJ_FUZZ_FRONTEND`` is the frontend that they go through. A program that differs is printed as a
test; the shortest such programs are kept below.
"""

from __future__ import annotations

import functools
import os

import pytest
import tj_core as tj
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from tj_torch.conformance.programs import TextProgram, programs, run_text

FULL = os.environ.get("TJ_FULL") == "1"
COUNT = int(os.environ.get("TJ_FUZZ", "5000" if FULL else "500"))
FRONTEND = os.environ.get("TJ_FUZZ_FRONTEND")
CHUNK = 250

KEPT = {
    "in-place view that keeps the shape was removed": TextProgram(
        ("p0 = torch.arange(1., 9).reshape(2, 2, 2)", "a = p0.view(-1)", "b = p0[..., ::2]"),
        ("a", "b"),
        ("p0",),
        ("t = b.reshape(-1)", "t.transpose_(0, -1)"),
        "[a, t]",
    ),
    "data was read again after the call": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3)",),
        ("a",),
        (),
        ("t = a.data", "t.mul_(2)"),
        "[t, t]",
    ),
    "attribute view was made again outside of no_grad": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3).requires_grad_()",),
        ("a",),
        (),
        ("with torch.no_grad():", "    t = a.T"),
        "t",
    ),
    "data that is replaced bumped the version": TextProgram(
        ("a = torch.arange(1., 7)", "b = torch.arange(1., 4)"),
        ("a", "b"),
        (),
        ("a.data = b",),
        "[a * 2]",
    ),
    "error of a view that nobody uses was lost": TextProgram(
        ("p = torch.arange(1., 7).reshape(2, 1, 3)", "a = p[..., ::2]"),
        ("a",),
        ("p",),
        ("a.mul_(2)", "t = a.view(-1)"),
        "[]",
    ),
    "grad mode that is left off was forgotten": TextProgram(
        ("a = torch.arange(1., 7).requires_grad_()",),
        ("a",),
        (),
        ("t = a * 2", "torch.set_grad_enabled(False)"),
        "t",
    ),
}
"""Every difference that was ever found, as short as it goes."""


def jit(fn):
    return tj.jit(fn, frontend=FRONTEND)


def assert_equal_to_eager(program: TextProgram) -> None:
    report = run_text(program, jit)
    assert report.ok, f"differs from eager:\n{report}\n\n{program}"


@pytest.mark.parametrize("name", KEPT)
def test_found_before(name) -> None:
    assert_equal_to_eager(KEPT[name])


@functools.cache
def totals() -> dict[str, int]:
    """Counted over all chunks, so that the programs are known to be worth running."""
    return {"programs": 0, "raise": 0, "fall back": 0}


@pytest.mark.parametrize("chunk", range(-(-COUNT // CHUNK)))
def test_made_up_programs(chunk) -> None:
    @hypothesis_seed(chunk)
    @settings(
        max_examples=min(CHUNK, COUNT - chunk * CHUNK),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def run(program: TextProgram) -> None:
        report = run_text(program, jit)
        counts = totals()
        counts["programs"] += 1
        counts["raise"] += any(report.raised)
        counts["fall back"] += bool(report.fallbacks)
        assert report.ok, f"differs from eager:\n{report}\n\n{program}"

    run()


def test_the_programs_were_worth_running() -> None:
    """Most are captured whole, and some raise: else the generator has gone astray."""
    counts = totals()
    if not counts["programs"]:
        pytest.skip("no made-up program was run")
    print(counts)
    assert counts["raise"] >= counts["programs"] // 100
    assert counts["fall back"] <= counts["programs"] // 2


def test_a_difference_is_found_and_printed() -> None:
    """The fuzzer can fail, and what it prints is a test that fails."""

    def forgets_writes(fn):
        return lambda *args: fn(*(a.clone() for a in args))

    @hypothesis_seed(0)
    @settings(
        max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(programs())
    def run(program: TextProgram) -> None:
        if not run_text(program, forgets_writes).ok:
            raise AssertionError(str(program))

    with pytest.raises(AssertionError) as found:
        run()
    text = str(found.value)
    text = text[text.index("import torch") : text.index('== "equal"') + 10]
    space = {"__name__": "printed"}
    exec(compile(text, "<printed>", "exec"), space)
    space["test_program"]()  # under tj the program is right
    space["check"] = lambda make, scenes: "wrong"
    with pytest.raises(AssertionError):
        space["test_program"]()

"""The same programs in functional form, PyTorch's autograd taking the gradients of that.

That autograd sees other calls than the user's: it does not refuse gradients for writes to what the
user's calls would have saved, and the views of results have grad_fns of other classes. All else is
as in eager.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import tj_core as tj
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from tj_core.jitted import jitted_of
from tj_torch.conformance.cases import run_case
from tj_torch.conformance.programs import TextProgram, programs, run_text

FULL = os.environ.get("TJ_FULL") == "1"
COUNT = int(os.environ.get("TJ_FUZZ", "5000" if FULL else "500"))
FRONTEND = os.environ.get("TJ_FUZZ_FRONTEND")
CHUNK = 250

OTHER_CLASS = {"value_written_after_a_view"}
"""Programs that return a view older than a write to a result that it is of."""


@functools.cache
def session() -> tj.Session:
    return tj.Session(["torch"], overrides={"torch": {"functional": "always"}})


SEEN: list[str] = []
"""For each entry that was compiled, why it is not functional; empty: it is."""


def functional(fn):
    jitted = tj.jit(fn, session=session(), frontend=FRONTEND)
    state = jitted_of(jitted)
    add = state.add

    def noting(entry):
        if entry.compilation is not None:
            SEEN.append("; ".join(answer.reason for _, answer in entry.compilation.declined))
        add(entry)

    state.add = noting
    return jitted


def tables():
    """The cases of the other files of this folder."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.name not in (Path(__file__).name, "test_scoreboard.py"):
            spec = importlib.util.spec_from_file_location(f"cases_of_{path.stem}", path)
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            table = getattr(module, "case", None)
            yield from table.each() if table is not None else ()


CASES = list(tables())


@pytest.mark.parametrize(("case", "kind"), CASES, ids=[f"{c.name}-{k}" for c, k in CASES])
def test_case(case, kind) -> None:
    ignore = ("grad_fn",) if case.name in OTHER_CLASS else ()
    run_case(case, kind, jit=functional, lenient=True, ignore=ignore)


@pytest.mark.parametrize("chunk", range(-(-COUNT // CHUNK)))
def test_made_up_programs(chunk) -> None:
    @hypothesis_seed(1000 + chunk)
    @settings(
        max_examples=min(CHUNK, COUNT - chunk * CHUNK),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def run(program: TextProgram) -> None:
        report = run_text(program, functional, lenient=True, ignore=("grad_fn",))
        assert report.ok, f"differs from eager:\n{report}\n\n{program}"

    run()


def test_most_programs_are_functional() -> None:
    if not SEEN:
        pytest.skip("no program was compiled")
    reasons: dict[str, int] = {}
    for reason in filter(None, SEEN):
        reasons[reason] = reasons.get(reason, 0) + 1
    print(len(SEEN), reasons)
    assert sum(reasons.values()) < 0.3 * len(SEEN), reasons

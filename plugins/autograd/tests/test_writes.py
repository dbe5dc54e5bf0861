"""Programs that write and alias, gradients taken on their functional form: as in eager.

The programs are those of the aliasing tests of the PyTorch plugin.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import tj_core as tj
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from tj_core.jitted import jitted_of
from tj_torch.conformance.aliasing import check
from tj_torch.conformance.cases import placed, run_case
from tj_torch.conformance.programs import TextProgram, programs, run_text

FOLDER = Path(__file__).parents[2] / "torch_exec/tests/aliasing"
FULL = os.environ.get("TJ_FULL") == "1"
COUNT = int(os.environ.get("TJ_FUZZ", "5000" if FULL else "250"))
CHUNK = 250

OTHER_CLASS = {"value_written_after_a_view"}
"""Programs that return a view older than a write to a result that it is of: eager makes its
grad_fn again, as AsStrided."""

TWICE = {"twice_differentiated_with_a_write", "twice_differentiated_with_a_hidden_write"}
"""Programs that write to arguments and are differentiated twice: they raise, see below."""

ROUNDING = {("autocast_view", "leaf")}
"""Eager's autocast casts a leaf once for all uses, so that it adds gradients in bfloat16."""


@functools.cache
def session() -> tj.Session:
    return tj.Session(["torch", "autograd"])


TAKEN: list[bool] = []
"""For each entry whether its gradients are a trace."""


def with_gradients(fn):
    jitted = tj.jit(fn, session=session())
    state = jitted_of(jitted)
    add = state.add

    def noting(entry):
        if entry.compilation is not None:
            TAKEN.append("backward" in entry.compilation.others)
        add(entry)

    state.add = noting
    return jitted


def tables():
    for path in sorted(FOLDER.glob("test_*.py")):
        if path.name in ("test_functional.py", "test_scoreboard.py"):
            continue
        spec = importlib.util.spec_from_file_location(f"written_{path.stem}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        table = getattr(module, "case", None)
        yield from table.each() if table is not None else ()


CASES = [
    (case, kind)
    for case, kind in tables()
    if kind != "plain"  # without gradients nothing is new
    and case.name not in TWICE
    and (case.name, kind) not in ROUNDING
]


@pytest.mark.parametrize(("case", "kind"), CASES, ids=[f"{c.name}-{k}" for c, k in CASES])
def test_case(case, kind) -> None:
    # Lenient: what eager saves and does not need is not saved, so nothing refuses to use it.
    ignore = ("grad_fn",) if case.name in OTHER_CLASS else ()
    run_case(case, kind, jit=with_gradients, lenient=True, ignore=ignore)


QUIET = [(c, k) for c, k in CASES if k not in c.raises and k not in c.breaks]


@pytest.mark.parametrize(("case", "kind"), QUIET[::9], ids=[f"{c.name}-{k}" for c, k in QUIET[::9]])
def test_gradients_of_gradients(case, kind) -> None:
    scenes = [placed(layout, kind) for layout in case.layouts]
    options = {"create_graph": True, "lenient": True, "ignore": ("grad_fn",)}
    report = check(case.make, scenes, jit=with_gradients, **options)
    assert report.ok, f"{case.name}:\n{report}"


def test_the_gradient_of_a_program_that_writes_an_argument_has_one_itself() -> None:
    """It is computed from the argument as it was, of which the call keeps a copy."""

    def f(x):
        y = (x * 3).sum()
        with torch.no_grad():
            x.mul_(2)
        return (x * x * x).sum() * y.detach() + y

    def twice(fn):
        x = torch.ones(3, requires_grad=True)
        (first,) = torch.autograd.grad(fn(x), x, create_graph=True)
        (second,) = torch.autograd.grad((first * first).sum(), x)
        return x.detach(), first, second

    for mine, theirs in zip(twice(with_gradients(f)), twice(f), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("chunk", range(-(-COUNT // CHUNK)))
def test_made_up_programs(chunk) -> None:
    @hypothesis_seed(2000 + chunk)
    @settings(
        max_examples=min(CHUNK, COUNT - chunk * CHUNK),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def run(program: TextProgram) -> None:
        report = run_text(program, with_gradients, lenient=True, ignore=("grad_fn",))
        assert report.ok, f"differs from eager:\n{report}\n\n{program}"

    run()


def test_gradients_were_traces() -> None:
    if not TAKEN:
        pytest.skip("no program was compiled")
    print(sum(TAKEN), len(TAKEN))
    assert sum(TAKEN) > 0.3 * len(TAKEN)

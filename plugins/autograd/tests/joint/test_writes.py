"""Programs that write and alias, gradients taken on their functional form: as in eager.

The programs are those of the aliasing tests of the PyTorch plugin.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.programs import cases
from tj_conformance.programs.aliasing import check, stateless
from tj_conformance.programs.cases import cases_in, modules_in, run_case
from tj_conformance.programs.findings import FOUND
from tj_conformance.programs.fuzz import Figures, chunks, compare_programs, through_fx
from tj_conformance.programs.scenes import placed
from tj_conformance.programs.texts import run_text
from tj_conformance.programs.tracer import traced
from tj_conformance.sampling import FULL
from tj_core.extend import Claim, Executor, RuleTable

pytestmark = pytest.mark.sampled(12)

FOLDER = Path(__file__).parents[3] / "torch_exec/tests/functionalize/aliasing"
COUNT = int(os.environ.get("TJ_FUZZ", "5000" if FULL else "60"))

OTHER_CLASS = {"value_written_after_a_view", "product_of_a_batch_is_written"}
"""Programs that return a view older than a write to a result that it is of: eager makes its
grad_fn again, as AsStrided."""

OTHER_STRIDES = {"transposed_by_attribute"}
"""Programs whose second derivatives are sums of which another summand comes first, and with it
another layout."""

OTHER_SUMS = {"spectral_norm", "autocast_around_a_write"}
"""Programs whose second derivatives are sums in another order: the last bit differs, in the second
program that of bfloat16."""

ROUNDING = {("autocast_view", "leaf")}
"""Eager's autocast casts a leaf once for all uses, so that it adds gradients in bfloat16."""


@functools.cache
def session() -> tj.Session:
    return tj.Session(["torch", "autograd"])


def with_gradients(fn):
    return tj.jit(fn, session=session())


CASES = [
    (case, kind)
    for case, kind in cases_in(FOLDER, but=("test_functional.py", "test_scoreboard.py"))
    if kind in cases.with_gradients(case)  # without them nothing is new
    and (case.name, kind) not in ROUNDING
]


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("case", "kind"), CASES, ids=[f"{c.name}-{k}" for c, k in CASES])
def test_case(case, kind) -> None:
    # Lenient: what eager saves and does not need is not saved, so nothing refuses to use it.
    ignore = ("grad_fn",) if case.name in OTHER_CLASS else ()
    FIGURES.add(run_case(case, kind, jit=with_gradients, lenient=True, ignore=ignore))


FIGURES = Figures()


def test_gradients_were_traces() -> None:
    if FIGURES.entries < 30:
        pytest.skip("too few programs ran in this process, with TJ_FULL=1 all do")
    print(FIGURES)
    assert FIGURES.with_backward > 0.3 * FIGURES.entries


FX = [
    (case, kind)
    for module in modules_in(FOLDER, pattern="test_a*.py")
    for case, kind in module.case.each()
    if kind in cases.with_gradients(case)
]
"""Writes through attributes and to what a tensor is to autograd: Dynamo refuses most of them."""


@pytest.mark.parametrize(("case", "kind"), FX, ids=[f"{c.name}-{k}" for c, k in FX])
def test_case_through_fx(case, kind) -> None:
    scenes = [placed(layout, kind) for layout in case.layouts]
    options = {"lenient": True, "ignore": ("grad_fn",)}
    report = check(case.make, scenes, jit=through_fx(session()), **options)
    assert report.ok, f"{case.name}:\n{report}"
    FIGURES_FX.add(report)


FIGURES_FX = Figures()


def test_most_programs_through_fx_have_a_backward() -> None:
    if FIGURES_FX.programs < 50:
        pytest.skip("too few programs ran in this process, with TJ_FULL=1 all do")
    assert FIGURES_FX.with_backward >= FIGURES_FX.programs // 2


QUIET = [
    (case, kind)
    for case, kind in CASES
    if kind not in case.raises and kind not in case.breaks and case.name not in OTHER_SUMS
][:: 1 if FULL else 9]


@pytest.mark.parametrize(("case", "kind"), QUIET, ids=[f"{c.name}-{k}" for c, k in QUIET])
def test_gradients_of_gradients(case, kind) -> None:
    scenes = [placed(layout, kind) for layout in case.layouts]
    ignore = ("grad_fn", "strides") if case.name in OTHER_STRIDES else ("grad_fn",)
    options = {"create_graph": True, "lenient": True, "ignore": ignore}
    report = check(case.make, scenes, jit=with_gradients, **options)
    assert report.ok, f"{case.name}:\n{report}"


def test_the_gradient_of_a_program_that_writes_an_argument_has_one_itself() -> None:
    """The second derivative is of the argument before the write, of which the call keeps a copy."""

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


(SEVERAL,) = modules_in(FOLDER, pattern="test_several.py")


@pytest.mark.parametrize("extra", SEVERAL.EXTRA, ids="+".join)
@pytest.mark.parametrize("order", SEVERAL.ORDERS, ids=", ".join)
def test_the_torture_of_the_seed_issue(order, extra) -> None:
    def jit(fn):
        return tj.jit(traced(fn), session=session(), frontend="fx")

    report = SEVERAL.tortured(order, extra, "inner", jit, SEVERAL.OTHER_CALLS)
    assert report.ok, str(report)


@pytest.mark.parametrize("layouts", [SEVERAL.SQUARE, SEVERAL.RECTANGLE[1:]])
@pytest.mark.parametrize("program", [SEVERAL.writes, SEVERAL.writes_in_hiding, SEVERAL.reads])
def test_arguments_are_apart_and_later_together(program, layouts) -> None:
    scenes = [placed(layout, "inner") for layout in layouts]
    report = check(stateless(program), scenes, jit=with_gradients, **SEVERAL.OTHER_CALLS)
    assert report.ok, str(report)
    assert report.entries <= len({*layouts})
    assert report.fallbacks == ()


@pytest.mark.parametrize("name", FOUND)
def test_found_before(name) -> None:
    report = run_text(FOUND[name], with_gradients, lenient=True, ignore=("grad_fn",))
    assert report.ok, f"differs from eager:\n{report}\n\n{FOUND[name]}"


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "count"), chunks(COUNT))
def test_made_up_programs(chunk, count) -> None:
    figures = Figures()
    options = {"figures": figures, "lenient": True, "ignore": ("grad_fn",)}
    compare_programs(with_gradients, seed=2000 + chunk, count=count, **options)
    print(figures)
    assert figures.with_backward  # of most, nothing needs a gradient


def test_a_gradient_that_eager_refuses_is_refused_whoever_runs_the_calls() -> None:
    """Without a backward trace the program stays as acquired, for PyTorch's autograd to see."""

    def f(x):
        z = x * 2
        w = z * z
        z.detach().mul_(3)
        return w

    claims = RuleTable("claim")
    claims.set("torch.sin", Claim(torch.sin))
    jitted = tj.jit(f, session=session(), executors=[Executor("other", claims)])
    for fn in (f, jitted):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(torch.ones(3, requires_grad=True)).sum().backward()


ITSELF: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul_": lambda v: v.mul_(v),
    "div_": lambda v: v.div_(v),
    "pow_": lambda v: v.pow_(v),
    "lerp_": lambda v: v.lerp_(v, v),
    "addcmul_": lambda v: v.addcmul_(v, v),
    "add_": lambda v: v.add_(v),
    "sub_": lambda v: v.sub_(v),
}


@pytest.mark.parametrize("name", ITSELF)
def test_an_argument_that_is_written_and_saved(name: str) -> None:
    """The backward raises as in eager, where the gradient needs what the call has written."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return ITSELF[name](x * 2)

    def gradient(f: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        x = torch.tensor([1.5, 2.0, 3.0], requires_grad=True)
        try:
            f(x).sum().backward()
        except RuntimeError as error:
            return type(error)
        assert x.grad is not None
        return x.grad.tolist()

    assert gradient(tj.jit(program)) == gradient(program)

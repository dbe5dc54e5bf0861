"""Autograd metadata changed in place: ``detach_()`` and ``requires_grad_()``.

Dynamo breaks the graph at most of these; graphs of ``fx`` contain them.
"""

from __future__ import annotations

import functools

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.aliasing import check
from tj_conformance.programs.cases import Table, run_case
from tj_conformance.programs.fuzz import through_fx
from tj_conformance.programs.scenes import KINDS, one, pair, placed, viewed
from tj_conformance.programs.tracer import traced
from tj_core.extend import Claim, Executor, RuleTable

pytestmark = pytest.mark.sampled(4)

case = Table()
GRAD = ("leaf", "inner")


def unviewed(new):
    """Vector with views of the caller's, and a matrix with its row, both arguments."""
    x, y = new(2, 3), new(3)
    return new.scene(x, y, watched=(x.view(-1), y[1:]))


# --------------------------------------------------------------------------- results


@case("I18")
def result_cut_off(x, y):
    z = x * 2
    z.detach_()
    return z, z * y


@case("I18")
def used_before_it_was_cut_off(x, y):
    z = x * 2
    u = z * y
    z.detach_()
    return u, z, z * y


@case("I18")
def viewed_before_it_was_cut_off(x, y):
    z = x * 2
    v = z.view(-1)
    z.detach_()
    return z, v, z[0], v * 2


@case("I18")
def written_before_it_was_cut_off(x, y):
    z = x * 2
    z.mul_(y)
    z.detach_()
    return z, z + x


@case("I18")
def written_after_it_was_cut_off(x, y):
    z = x * 2
    z.detach_()
    z.mul_(2)
    z[0].add_(y.detach())
    return z, z + x


@case("I18")
def comes_to_need_a_gradient_again(x, y):
    z = x * 2
    z.detach_()
    z.mul_(y)
    return z


@case("I18")
def older_view_is_written(x, y):
    z = x * 2
    v = z.view(-1)
    z.detach_()
    with torch.no_grad():
        v.mul_(2)
    return z, v


@case("I18")
def cut_off_twice(x, y):
    z = (x * 2).detach_()
    w = z.detach_()
    return z, w, w * y


@case("I18", "I7")
def transposed_and_cut_off(x, y):
    z = x * 2
    z.t_()
    z.detach_()
    z.unsqueeze_(0)
    return z


@case("I17")
def told_what_it_is(x, y):
    z = x.detach() * 2
    z.requires_grad_(False)
    return z * y, z


@case("I18", raises=("plain", "leaf", "inner"))
def view_cut_off(x, y):
    z = x * 2
    z[0].detach_()
    return z


@case("I17", raises=GRAD)
def result_stops_to_need_a_gradient(x, y):
    z = x * 2
    z.requires_grad_(False)
    return z


@case("I17", raises=("plain", "leaf", "inner"))
def integers_need_a_gradient(x, y):
    z = x.to(torch.int64)
    z.requires_grad_()
    return z


# --------------------------------------------------------------------------- arguments


@case("I18", layouts=(pair, unviewed), breaks=True)
def argument_cut_off(x, y):
    u = x * y
    x.detach_()
    return u, x * y


@case("I18", layouts=(viewed,), breaks=True)
def argument_with_a_view_cut_off(x, y):
    v = x[0]
    x.detach_()
    return v, x, x * y


@case("I18", layouts=(pair,), breaks=True, raises=("leaf",))
def argument_written_then_cut_off(x, y):
    x.mul_(y)
    x.detach_()
    return x * 2


@case("I18", layouts=(pair,), breaks=True)
def argument_cut_off_then_written(x, y):
    x.detach_()
    x.mul_(2)
    return x * y


def view_given(new):
    """The argument is a view, which PyTorch refuses to detach in place."""
    base = new(2, 3)
    return new.scene(base.view(3, 2), new(3), watched=(base,))


@case("I18", layouts=(pair, view_given), breaks=True, raises=("plain", "leaf", "inner"))
def a_view_is_given_later(x, y):
    with torch.no_grad():
        y.add_(1)
    x.detach_()
    with torch.no_grad():
        y.add_(1)
    return x * 2


@case("I17", layouts=(pair, unviewed), kinds=("plain", "leaf"), breaks=("leaf",))
def leaf_needs_none_any_more(x, y):
    u = x * y
    x.requires_grad_(False)
    return u, x * 2


@case("I17", layouts=(pair,), kinds=("inner",), raises=("inner",), breaks=("inner",))
def result_given_is_no_leaf(x, y):
    x.requires_grad_(False)
    return x * 2


@case("I17", layouts=(pair,), kinds=GRAD)
def needs_one_already(x, y):
    x.requires_grad_()
    return x * y


@case("I17", layouts=(one,), kinds=("plain", "leaf"), breaks=("plain",))
def needs_one_from_here_on(x):
    u = x * 2
    x.requires_grad_()
    return u, x * 2


@pytest.mark.parametrize(**case.parameters())
def test_autograd_metadata(case, kind) -> None:
    run_case(case, kind)


@functools.cache
def session(*plugins: str) -> tj.Session:
    return tj.Session(plugins, overrides={"torch": {"functional": "always"}})


SAVED = "a tensor that autograd may have saved is detached in place"
CUT = "a tensor that was detached in place is written, and has other views"
VIEW = "detach_ of a view, which PyTorch refuses"
LEAF = "a tensor that required no grad becomes a leaf that does"
RESULT = "requires_grad_(False) of a computed tensor, which is no leaf"
AGAIN = "a detached tensor comes to require a gradient"
DECLINED = {
    **dict.fromkeys((("view_cut_off", kind) for kind in KINDS), VIEW),
    **dict.fromkeys((("result_stops_to_need_a_gradient", kind) for kind in GRAD), RESULT),
    **dict.fromkeys((("comes_to_need_a_gradient_again", kind) for kind in GRAD), AGAIN),
    **dict.fromkeys((("older_view_is_written", kind) for kind in GRAD), CUT),
    **dict.fromkeys((("used_before_it_was_cut_off", kind) for kind in GRAD), SAVED),
    **dict.fromkeys((("argument_cut_off", kind) for kind in GRAD), SAVED),
    **dict.fromkeys((("argument_cut_off_then_written", kind) for kind in GRAD), CUT),
    ("needs_one_from_here_on", "plain"): LEAF,
}
"""Cases that run as acquired, with the reasons."""

FX = [(c, k) for c, k in case.each()]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("functional", [False, True], ids=["auto", "always"])
@pytest.mark.parametrize(("case", "kind"), FX, ids=[f"{c.name}-{k}" for c, k in FX])
def test_through_fx(case, kind, functional) -> None:
    way = through_fx(session("torch") if functional else tj.Session(["torch"]))
    options = {"lenient": True, "ignore": ("grad_fn",)} if functional else {}
    report = check(case.make, [placed(layout, kind) for layout in case.layouts], jit=way, **options)
    assert report.ok, str(report)
    declined = {answer.reason for c in report.compilations for _, answer in c.declined}
    if functional and report.compilations:
        assert (
            declined == {DECLINED[case.name, kind]}
            if (case.name, kind) in DECLINED
            else not declined
        )


def test_an_executor_gets_no_call_that_has_come_to_need_a_gradient() -> None:
    """The argument's metadata after the in-place call count, not those before it."""

    def program(x):
        x.requires_grad_()
        return x * 2

    claims = RuleTable("claim")
    claims.set("torch.mul", Claim(lambda x, y: torch.mul(x.detach(), y)))
    executors = [Executor("detaching", claims), "..."]
    jitted = tj.jit(traced(program), frontend="fx", executors=executors)
    x = torch.ones(2)
    jitted(x).sum().backward()
    assert x.grad.tolist() == [2, 2]

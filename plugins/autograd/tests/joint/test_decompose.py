"""Gradients of parts: calls are decomposed if a plugin or executor has a gradient for a part."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.contract.decline import Decline
from tj_core.contract.rules import RuleTable
from tj_core.extend import Replacement, Transform
from tj_core.ir.stage import Stage
from tj_suites.gradients.parts import (
    ADDMM,
    FUNCTIONS,
    RAN,
    SOFTMAX,
    check,
    compare,
    decomposed,
    dropped,
    pair,
    parameters,
    rows,
    rule,
)
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.sampled(4)


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


LINEAR, DROPOUT = "torch.nn.functional.linear", "torch.nn.functional.dropout"


WEIGHTS = [(5, 3, 8), (24, 8), (24,), (8, 8), (8,)]


def test_what_has_no_such_part_stays_whole() -> None:
    jitted = check(
        lambda x: F.softmax(F.layer_norm(x, (4,)), -1), parameters((3, 4)), rule(SOFTMAX)
    )
    names = [c.symbol.qualname for c in tj.last_trace(jitted, stage="JOINT").calls]
    assert "torch.nn.functional.layer_norm.augmented" in names
    assert "torch.nn.functional.softmax" not in names
    assert SOFTMAX in names


def test_the_gradient_of_the_whole_comes_first() -> None:
    """Its owner may be an executor, a plugin, or tj-autograd itself."""
    args = parameters((3, 4), (5, 4), (5,))
    jitted = check(lambda x, w, b: F.linear(x, w, b), args, pair("inner", ADDMM), rule(LINEAR))
    assert rows(jitted) == [(LINEAR, "Rules", "")]
    assert RAN == []
    key = "aten.mul.Tensor"
    FUNCTIONS[key] = (lambda x, y: (x * y, (y,)), lambda saved, g: (g * saved[0],))
    jitted = check(lambda x: F.dropout(x * 2, 0.5), parameters((3, 4)), rule(key))
    assert ("torch.nn.functional.dropout", "autograd", "") in rows(jitted)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_executors_are_asked_in_order(order: tuple[str, str]) -> None:
    args = parameters((3, 4), (5, 4), (5,))
    made = [pair(name, ADDMM) for name in order]
    jitted = check(lambda x, w, b: F.linear(x, w, b), args, *made, rule(ADDMM))
    assert decomposed(jitted) == [f"decomposed: {ADDMM} of {order[0]}"]
    assert [order[0], f"{order[0]} back"] == RAN


def test_a_gradient_that_declines_opens_nothing() -> None:
    def small(call: Any) -> Any:
        return True if call.flat_outs[0].shape[0] > 3 else Decline("too small")

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x[:3], w, b).sum() + F.linear(x, w, b)

    for made in (rule(ADDMM, small), pair("mine", ADDMM, small)):
        jitted = check(f, parameters((5, 4), (6, 4), (6,)), made)
        joint = tj.last_trace(jitted, stage="JOINT").calls
        assert [c.symbol.qualname for c in joint].count("torch.nn.functional.linear") == 1
        assert len(decomposed(jitted)) == 1
    declining = rule(ADDMM, lambda call: Decline("not today"))
    jitted = check(f, parameters((5, 4), (6, 4), (6,)), declining)
    assert decomposed(jitted) == []


def test_tags_parents_and_lines_of_parts() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = tj.tag(F.linear(x.sin(), w, b), "SAVE")  # this line
        return y.exp() * y

    jitted = check(f, parameters((2, 3, 4), (5, 4), (5,)), rule(ADDMM))
    joint = tj.last_trace(jitted, stage="JOINT").calls
    inner = next(c for c in joint if c.symbol.qualname == ADDMM)
    assert inner.parent == "y"
    assert "this line" in inner.source.text
    back = next(c for c in joint if c.symbol.qualname == f"{ADDMM}.backward")
    assert back.parent == inner.flat_outs[0].name
    assert "this line" in back.source.text
    (y,) = (p for c in joint for p in c.flat_outs if p.name == "y")
    assert "SAVE" in y.tags


def test_other_parts_have_the_gradients_they_would_have_alone() -> None:
    """Dropout has a rule of tj-autograd's own."""
    jitted = check(dropped, parameters(*WEIGHTS), rule(LINEAR))
    assert (DROPOUT, "autograd", "") in rows(jitted)


@pytest.mark.parametrize("key", [LINEAR, SOFTMAX])
def test_parts_of_a_checkpointed_region_run_again(key: str) -> None:
    """They run from the same states of the generator."""

    def f(*args: torch.Tensor) -> torch.Tensor:
        return checkpoint(dropped, *args, use_reentrant=False) * 2

    jitted = check(f, parameters(*WEIGHTS), rule(key))
    assert decomposed(jitted) == [f"decomposed: {key} of Rules"]
    trace = tj.last_trace(jitted, stage="SPLIT")
    given = {p.name for p in trace.inputs}
    made = [p for p in trace.outputs[2] if p.name not in given]
    assert [type(p).__name__ for p in made] == ["OpaqueProxy"]


# ------------------------------------------------------------------------------- not decomposed


def cell(x, w):
    """Writes, inside of its body, to a value that needs a gradient."""
    state = torch.ones(2, 3), torch.ones(2, 3)
    return torch.lstm_cell(x, state, w, torch.ones(12, 3), torch.ones(12), torch.ones(12))[0]


def test_what_autograd_sees_is_something_else() -> None:
    jitted = check(cell, parameters((2, 4), (12, 4)), rule(ADDMM))
    assert decomposed(jitted) == []
    said = [why for r, _, why in rows(jitted) if r == "derived" and why]
    assert said == [
        f"Rules: its gradient of {ADDMM} is not used: its body computes its values in another way "
        "than autograd sees"
    ]


@torch.compiler.allow_in_graph
def straight_through(x):
    soft = F.softmax(x, -1)
    return soft * soft.detach()


def test_a_body_that_detaches() -> None:
    check(lambda x: straight_through(x).sin(), parameters((3, 4)), rule(SOFTMAX))


@torch.compiler.allow_in_graph
def switching(x):
    with torch.no_grad():
        scale = F.softmax(x, -1)
    return F.softmax(x * scale, -1)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.softmax(x, -1) * 2

    @staticmethod
    def backward(ctx, g):
        return g * 5


@torch.compiler.allow_in_graph
def with_function(x):
    return Twice.apply(x)


@pytest.mark.parametrize("fn", [switching, with_function])
def test_bodies_that_say_less_of_gradients_than_calls(fn: Any) -> None:
    assert decomposed(check(lambda x: fn(x).sin(), parameters((3, 4)), rule(SOFTMAX))) == []


# ------------------------------------------------------------------------------- levels


def edited() -> Transform:
    """A transform that edits the bodies of all exact gelus."""
    rules: RuleTable[Any] = RuleTable("approximate")

    @rules.register("aten.gelu.default")
    def approximate(call: Any, edit: Any) -> Replacement | None:
        if call.kwargs:
            return None
        name = call.flat_outs[0].name
        made = edit.call(
            "torch.nn.functional.gelu", *call.args, approximate="tanh", outputs=(name,)
        )
        return Replacement((made,))

    return Transform("approximate", lambda t, c: c.rewrite(t, rules), after=Stage.ACQUIRED)


@pytest.mark.parametrize("key", [None, "aten.gelu.default", "torch.nn.functional.gelu"])
def test_calls_that_are_their_bodies_are_decomposed_level_by_level(key: str | None) -> None:
    plugins = [] if key is None else [rule(key)]
    session = tj.Session([*plugins, "torch", "autograd"])
    jitted = tj.jit(lambda x: F.gelu(x.sin()), session=session, transforms=[edited()])
    args = parameters((3, 4))
    compare(jitted, lambda x: F.gelu(x.sin(), approximate="tanh"), args)
    expected = ["decomposed: it is what its body says"]
    if key == "aten.gelu.default":
        expected.append(f"decomposed: {key} of Rules")
    assert decomposed(jitted) == expected
    last = ("derived", "autograd") if key is None else (key, "Rules")
    assert last in [(r, whose) for r, whose, _ in rows(jitted)]


def test_a_layer_repeated_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import tj_torch.ops.service as module

    runs: list[Any] = []
    run = module.observed
    monkeypatch.setattr(module, "observed", lambda *a: runs.append(a) or run(*a))

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = F.linear(x, w, b)
        return x

    assert len(decomposed(check(f, parameters((3, 4), (4, 4), (4,)), rule(ADDMM)))) == 4
    assert len(runs) == 1
    check(f, parameters((3, 4), (4, 4), (4,)), rule(SOFTMAX))
    check(f, parameters((3, 4), (4, 4), (4,)))
    assert len(runs) == 1

"""Calls with operand programs: their effects, and edits of these programs."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tj_core.compile.codegen import generate
from tj_core.compile.context import PassContext
from tj_core.contract.expansion import bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import Replacement
from tj_core.edit.subprograms import inline_subprogram, map_programs, summed_effects, with_programs
from tj_core.errors import TraceError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.names import Namer
from tj_core.ir.tags import TagSet
from tj_core.ir.trace import Subprogram, Trace
from tj_core.passes.dce import dce
from tj_core.source import Source
from tj_core.testing.numeric import call, expansions, vector
from tj_core.testing.subprograms import (
    LANGUAGE,
    TAGS,
    X,
    Y,
    Z,
    body,
    once,
    program,
    run,
    whole,
)
from tj_core.text.language import EMPTY_LANGUAGE
from tj_core.verify.verifier import verify


def context():
    return PassContext("pass", "test", expansions, TAGS, {})


def rules(rule, *keys):
    table = RuleTable("rules")
    table.register(*keys)(rule)
    return table


def negated(old, edit):
    """``-a`` for ``1/a``."""
    return Replacement((edit.call("num.neg", *old.args, outputs=(old.outputs.name,)),))


# ------------------------------------------------------------------------------- effects

EFFECTS = [
    ("pure", body(("neg", "x")), Effects()),
    ("writes", body(("fill_", "x", 1.0), ("neg", "x")), Effects(mutates=(0,))),
    (
        "returns what it was given",
        body(("same", "x")),
        Effects(aliases=(Alias(0, "arg", 0),)),
    ),
    (
        "writes through another name",
        body(("same", "y"), ("fill_", "t0", 1.0), ("neg", "x"), inputs=(X, Y)),
        Effects(mutates=(1,)),
    ),
    ("writes what it made", body(("neg", "x"), ("fill_", "t0", 1.0), ("neg", "x")), Effects()),
    ("draws", body(("noise", "x")), Effects(ordered=("random:num",))),
    (
        "writes what the operation made up",
        body(("fill_", "x", 1.0), ("neg", "x"), operands=(None,)),
        Effects(ordered=("side_effect",)),
    ),
]


@pytest.mark.parametrize(
    ("region", "effects"), [e[1:] for e in EFFECTS], ids=[e[0] for e in EFFECTS]
)
def test_effects_are_the_sum_of_what_regions_do(region, effects):
    assert summed_effects(once(region, X, Y)) == effects


def test_outputs_that_share_storage_with_one_another():
    both = body(("neg", "x"), ("same", "t0"), outputs=["t0", "t1"])
    made = call("once", both, X, outputs=(Y, Z))
    assert summed_effects(made).aliases == (Alias(1, "out", 0),)


def test_an_operation_of_unknown_effects_may_return_its_arguments():
    inner = call("neg", X, outputs=Y, effects=Effects(ordered=("side_effect",)))
    region = Subprogram(Trace((X,), (inner,), (Y,), "body", language=EMPTY_LANGUAGE), (0,), True)
    found = summed_effects(once(region, X))
    assert found == Effects(aliases=(Alias(0, "arg", 0),), ordered=("side_effect",))


def test_effects_of_branches_add_up():
    yes = body(("fill_", "x", 1.0), ("neg", "x"), inputs=(X, Y))
    no = Subprogram(program("no", (X, Y), ("noise", "y")), (0, 1), True)
    made = call("either", True, yes, no, X, Y, outputs=(Z,))
    assert summed_effects(made) == Effects(mutates=(0,), ordered=("random:num",))


def test_regions_of_regions_count():
    inner = once(body(("fill_", "x", 1.0), ("neg", "x")), X)
    inner = inner.replace(effects=summed_effects(inner))
    outer = Subprogram(Trace((X,), (inner,), (Z,), "outer", language=LANGUAGE), (1,), True)
    assert summed_effects(call("once", outer, Y, X, outputs=(Z,))).mutates == (1,)


def test_regions_that_are_given_by_keyword_are_edited():
    named = once(body(("neg", "x")), X)
    (region,) = named.subprograms
    named = named.replace(args=(X,), kwargs={"body": region})
    renamed = map_programs(named, lambda program: program.replace(name="other"))
    assert [r.program.name for r in renamed.subprograms] == ["other"]


# ------------------------------------------------------------------------------- rewriting


def test_rules_apply_inside_and_the_rest_stays():
    region = body(("reciprocal", "x"), ("neg", "t0"))
    first, second = once(region, X, outputs=Z), once(region, Z, outputs=Y.replace(name="w"))
    trace = whole(first, call("neg", X, outputs=vector("v", 2)), second, outputs=(Z,))
    edited = context().rewrite(trace, rules(negated, "num.reciprocal"))
    assert run(edited) == ([1.0, 2.0],)
    assert edited.calls[1] is trace.calls[1]
    # One program that two calls share is edited once, and stays one.
    programs = [c.subprograms[0].program for c in (edited.calls[0], edited.calls[2])]
    assert programs[0] is programs[1]
    assert [c.call for c in edited.history[-1].changes] == ["z.body.t0", "w.body.t0"]
    assert edited.calls[0].symbol == first.symbol  # it is the same operation still
    assert edited.calls[0].subprograms[0].program.calls[1] is region.program.calls[1]
    verify(edited, level=2, tags=TAGS, expand=expansions)


def test_rules_stay_out_where_they_are_told_to():
    trace = whole(once(body(("reciprocal", "x")), X))
    assert (
        context().rewrite(trace, rules(negated, "num.reciprocal"), into_subprograms=False) is trace
    )


def test_what_a_region_now_returns_and_does_the_call_does():
    def noisy(old, edit):
        return Replacement((edit.call("num.noise", *old.args, outputs=(old.outputs.name,)),))

    edited = context().rewrite(whole(once(body(("neg", "x")), X)), rules(noisy, "num.neg"))
    assert edited.calls[0].effects == Effects(ordered=("random:num",))


def longer(old, edit):
    """A shorter vector for each ``reciprocal``."""
    made = edit.call("num.split", *old.args, 1, outputs=(old.outputs.name,))
    return Replacement((made,))


def test_metadata_that_changes_inside_changes_what_uses_the_call():
    trace = whole(
        once(body(("reciprocal", "x")), X), call("neg", Z, outputs=Y.replace(name="w")),
        outputs=(Y.replace(name="w"),),
    )  # fmt: skip
    edited = context().rewrite(trace, rules(longer, "num.reciprocal"))
    assert edited.calls[0].flat_outs[0].shape == (1,)
    assert edited.calls[1].outputs.shape == (1,)
    assert run(edited) == ([-1.0],)


def test_metadata_that_changes_outside_changes_the_region():
    region = body(("neg", "x"), inputs=(X,))
    trace = whole(
        call("reciprocal", X, outputs=Y.replace(name="w")),
        once(region, Y.replace(name="w")),
    )
    edited = context().rewrite(trace, rules(longer, "num.reciprocal"))
    (renewed,) = edited.calls[1].subprograms
    assert renewed.program.inputs[0].shape == renewed.program.calls[0].outputs.shape == (1,)
    assert edited.calls[1].flat_outs[0].shape == (1,)
    assert run(edited) == ([-1.0],)


def test_a_replaced_call_whose_inputs_changed_still_tells_who_uses_it():
    w, v = vector("w", 2), vector("v", 2)
    trace = whole(
        call("reciprocal", X, outputs=w), call("neg", w, outputs=v), call("neg", v, outputs=Z)
    )

    def same(old, edit):
        return Replacement((edit.call("num.neg", *old.args, outputs=(old.outputs.name,)),))

    table = rules(longer, "num.reciprocal")
    table.register("num.neg")(same)
    edited = context().rewrite(trace, table)
    verify(edited, level=2, tags=TAGS, expand=expansions)
    assert run(edited) == ([1.0],)


def test_branches_must_stay_alike():
    yes, no = body(("reciprocal", "x")), Subprogram(program("no", (X,), ("neg", "x")), (0,), True)
    trace = whole(call("either", True, yes, no, X, outputs=(Z,)))
    with pytest.raises(TraceError, match=r"subprograms 'body' and 'no' of num.either return"):
        context().rewrite(trace, rules(longer, "num.reciprocal"))


def test_a_region_that_the_operation_counts_on_must_return_the_same():
    region = body(("reciprocal", "x"), returns=False)
    trace = whole(call("twice", region, X, outputs=(Z,)))
    with pytest.raises(TraceError, match=r"subprogram 'body' of num.twice now returns"):
        context().rewrite(trace, rules(longer, "num.reciprocal"))


def test_a_program_may_be_put_in_a_regions_place():
    made = with_programs(
        once(body(("neg", "x")), X), lambda p: program("body", (X,), ("noise", "x"))
    )
    assert made.effects.ordered == ("random:num",)
    assert map_programs(made, lambda p: p) is made


# ------------------------------------------------------------------------------- inlining


def inlined(made, **more):
    region = made.subprograms[0]
    calls, values = inline_subprogram(made, region, Namer({"x", "y", "z", "t0"}), TAGS)
    return calls, values


def test_a_region_takes_its_calls_place():
    outer = Source("model.py", 3, "z = once(f, x)")
    source = Source("model.py", 1, "return -x")
    steps = program("body", (X, Y), ("add", "x", "y"), ("neg", "t0"))
    steps = steps.replace(
        calls=(steps.calls[0].replace(source=source, tags=TagSet(["COLD"])), steps.calls[1])
    )
    made = once(
        Subprogram(steps, (1, 0), True), Y, X, source=outer, tags=TagSet(["HOT", "COLD"]),
        outputs=Z.replace(tags=TagSet(["SAVE"])),
    )  # fmt: skip
    calls, values = inlined(made)
    assert not values
    assert [(c.symbol.name, c.args, c.label) for c in calls] == [
        ("add", (X, Y), "t0_1"), ("neg", (calls[0].outputs,), "z"),
    ]  # fmt: skip
    assert [c.source for c in calls] == [source, outer]
    assert [set(c.tags) for c in calls] == [{"HOT", "COLD"}, {"HOT"}]
    assert calls[1].outputs.tags == TagSet(["SAVE"])
    assert [c.parent for c in calls] == ["z", "z"]


def test_outputs_that_are_other_values():
    region = body(("neg", "x"), outputs=["x", "t0", "t0"])
    made = call("once", region, Y, outputs=(vector("a", 2), vector("b", 2), vector("c", 2)))
    calls, values = inlined(made)
    assert [c.label for c in calls] == ["b"]
    assert values == {"a": Y, "c": calls[0].outputs}


def test_writes_are_inlined_as_they_stand():
    region = body(("fill_", "x", 7.0), ("neg", "x"))
    trace = whole(once(region, X).replace(effects=Effects(mutates=(0,))))
    edited = context().rewrite(trace, rules(lambda c, edit: edit.inline_subprogram(), "num.once"))
    assert [c.symbol.name for c in edited.calls] == ["fill_", "neg"]
    verify(edited, level=2, tags=TAGS, expand=expansions)
    assert run(edited) == ([-7.0, -7.0],)


def test_what_the_operation_makes_up_cannot_be_inlined():
    with pytest.raises(TraceError, match="its input 'x' is no argument"):
        inlined(once(body(("neg", "x"), operands=(None,)), X))


# ------------------------------------------------------------------------------- properties


@st.composite
def nested(draw, depth=2):
    """A program over ``x`` and ``y`` whose steps may be operations with regions."""
    values, calls = [X, Y], []
    for n in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(["add", "neg", "same", "fill_", *(["once"] * 2 if depth else [])])
        )
        args = [draw(st.sampled_from(values)) for _ in range({"add": 2, "once": 2}.get(kind, 1))]
        out = vector(f"t{n}", 2)
        if kind == "once":
            inner = draw(nested(depth - 1)).replace(name=f"f{n}")
            made = call("once", Subprogram(inner, (0, 1), True), *args, outputs=(out,))
            made = made.replace(effects=summed_effects(made))
        else:
            bare = call(kind, *args, *([2.0] if kind == "fill_" else []))
            made = bind_outputs(bare, expansions.require(bare).value(bare), lambda i, n=n: f"t{n}")
        calls.append(made)
        values += made.flat_outs
    return Trace((X, Y), tuple(calls), (draw(st.sampled_from(values)),), language=LANGUAGE)


def outcome(trace):
    given_ = [[1.0, 2.0], [3.0, 5.0]]
    found = generate(trace).function(*given_)
    return [list(v) for v in found], given_


@settings(deadline=None, max_examples=80)
@given(nested())
def test_dce_inlining_and_text_keep_what_programs_do(trace):
    verify(trace, level=2, tags=TAGS, expand=expansions)
    expected = outcome(trace)
    assert outcome(dce(trace)) == expected
    assert Trace.parse(str(trace), language=LANGUAGE) == trace
    flat = trace
    while any(c.subprograms for c in flat.calls):
        flat = context().rewrite(flat, rules(lambda c, edit: edit.inline_subprogram(), "num.once"))
    verify(flat, level=2, tags=TAGS, expand=expansions)
    assert outcome(flat) == expected


@settings(deadline=None, max_examples=80)
@given(nested())
def test_summed_effects_say_all_that_is_written(trace):
    """A program as a region: its actual writes are among the declared writes of its call."""
    made = call("once", Subprogram(trace.replace(name="body"), (0, 1), True), X, Y, outputs=(Z,))
    effects = summed_effects(made)
    _, after = outcome(trace)
    written = {
        i for i, (a, b) in enumerate(zip(after, [[1.0, 2.0], [3.0, 5.0]], strict=True)) if a != b
    }
    assert written <= set(effects.mutates)
    given_ = [[1.0, 2.0], [3.0, 5.0]]
    (result,) = generate(trace).function(*given_)
    shared = {i for i, v in enumerate(given_) if v is result}
    assert shared <= {a.index for a in effects.aliases if a.kind == "arg"}

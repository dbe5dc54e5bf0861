"""The pipeline: order of passes, stages, errors of broken passes."""

from __future__ import annotations

import pytest
from tj_core.compile.pipeline import Pipeline
from tj_core.compile.transforms import USER, Ranked, Transform
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import Replacement
from tj_core.errors import (
    PassError,
    PluginError,
    RuleMissingError,
    TjError,
    TraceError,
    VerificationError,
)
from tj_core.ir.effects import Effects
from tj_core.ir.stage import Stage
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import Trace
from tj_core.looking.explanation import explain_compilation
from tj_core.passes.dce import dce
from tj_core.source import Source
from tj_core.testing.numeric import MEANING, call, expansions, vector
from tj_core.text.language import EMPTY_LANGUAGE

X, Y, Z = vector("x", 2), vector("y", 2), vector("z", 2)


def pipeline(*transforms, check=2, implementations=None, strict=True):
    claims: RuleTable[Claim] = RuleTable("claim")
    for name, meaning in {**MEANING, **(implementations or {})}.items():
        claims.set(f"num.{name}", Claim(meaning))
    ranked = [t if isinstance(t, Ranked) else Ranked("mine", t) for t in transforms]
    tables = {"expand": expansions}
    return Pipeline(
        ranked, [Executor("ex", claims)], expansions, TagRegistry(), tables, check, strict=strict
    )


def program(*calls, outputs=Y, **more):
    return Trace(
        (X,), calls or (call("neg", X, outputs=Y),), outputs, **{"language": EMPTY_LANGUAGE, **more}
    )


def rename(name):
    return lambda trace, context: trace.replace(name=name)


def test_a_program_comes_out():
    compiled = pipeline().compile(program())
    assert compiled.program.function([1.0, 2.0]) == [-1.0, -2.0]
    assert [t.stage for t in compiled.traces] == [Stage.ACQUIRED, Stage.CLAIMED]
    assert [c.executor for c in compiled.claims] == ["ex"]
    assert list(compiled.seconds) == ["verify", "dce", "cse", "claim", "codegen"]
    assert all(s >= 0 for s in compiled.seconds.values())
    boxed = pipeline().compile(program(), boxed=True)
    box = [[1.0, 2.0]]
    assert boxed.program.function(box) == [-1.0, -2.0]
    assert box == []


def test_dead_calls_go_before_claiming():
    compiled = pipeline().compile(program(call("neg", X, outputs=Y), call("neg", X, outputs=Z)))
    assert [t.history[-1].name for t in compiled.traces[1:]] == ["dce", "claim"]
    assert len(compiled.claims) == 1


def test_passes_run_after_their_stage_in_the_order_given():
    order = []

    def noting(name):
        def apply(trace, context):
            order.append((name, context.name, context.plugin, trace.stage))
            return trace

        return apply

    stages = [Stage.CLAIMED, Stage.FUNCTIONAL, Stage.ACQUIRED, Stage.ACQUIRED]
    transforms = [Transform(f"t{i}", noting(i), after) for i, after in enumerate(stages)]
    compiled = pipeline(*transforms).compile(program())
    assert order == [
        (2, "t2", "mine", Stage.ACQUIRED),
        (3, "t3", "mine", Stage.ACQUIRED),
        (1, "t1", "mine", Stage.ACQUIRED),
        (0, "t0", "mine", Stage.CLAIMED),
    ]
    assert len(compiled.traces) == 2  # none of them changed anything


def test_a_pass_that_changes_something_is_in_the_history():
    first = pipeline(Transform("mine", rename("forward"), Stage.ACQUIRED)).compile(program())
    assert first.traces[1].name == "forward"
    assert [(r.name, r.plugin) for r in first.traces[1].history] == [("mine", "mine")]
    assert first.program.function.__name__ == "forward"


def test_a_pass_rewrites_in_its_own_name():
    rules = RuleTable("mine")
    rules.set(
        "num.neg", lambda c, edit: Replacement((edit.call("num.reciprocal", X, outputs=("y",)),))
    )
    transform = Transform("flip", lambda t, context: context.rewrite(t, rules), Stage.ACQUIRED)
    compiled = pipeline(transform).compile(program())
    record = compiled.traces[1].history[-1]
    assert (record.name, record.plugin, record.changes[0].call) == ("flip", "mine", "y")
    assert compiled.program.function([2.0, 4.0]) == [0.5, 0.25]


def test_the_owner_of_a_stage_moves_the_trace_there():
    transform = Transform("own", lambda t, c: t, Stage.ACQUIRED, produces=Stage.FUNCTIONAL)
    compiled = pipeline(transform).compile(program())
    assert [t.stage for t in compiled.traces] == [Stage.ACQUIRED, Stage.FUNCTIONAL, Stage.CLAIMED]
    mutating = program(call("fill_", X, 1.0, outputs=Y, effects=Effects(mutates=(0,))))
    pipeline().compile(mutating)  # nobody owns the stage, so nobody asserts it
    with pytest.raises(
        VerificationError, match=r"after own, at stage FUNCTIONAL: call 'y' .* mutates"
    ):
        pipeline(transform).compile(mutating)


def test_a_transform_puts_something_around_the_program():
    outer = program().replace(name="outer")
    kept = []

    def wrap(function, recompiler):
        kept.append(recompiler)
        return lambda x: ["around", *function(x)]

    def apply(trace, context):
        return context.wrap(trace.replace(name="inner"), wrap, outer)

    transform = Transform("own", apply, Stage.ACQUIRED, produces=Stage.FUNCTIONAL)
    compiled = pipeline(transform).compile(program())
    assert compiled.function([1.0]) == ["around", -1.0]
    assert compiled.program.function([1.0]) == [-1.0]
    assert compiled.others == {"epilogue": outer}
    assert [t.stage for t in compiled.traces] == [Stage.ACQUIRED, Stage.FUNCTIONAL, Stage.CLAIMED]
    (recompiler,) = kept
    assert recompiler.acquired().function([1.0]) == [-1.0]  # without the transform
    other = recompiler.compiled(program().replace(name="other"))
    assert other.function([1.0]) == ["around", -1.0]
    assert compiled.others.keys() == {"epilogue"}
    recompiler.show("other_0", other)
    assert compiled.others["other_0"].traces == other.traces


def test_a_transform_says_what_it_returns():
    """One outcome holds several wrappers; what is not returned has no effect, or is an error."""

    def around(text):
        return lambda function, _: lambda x: [text, *function(x)]

    def twice(trace, context):
        context.wrap(trace, around("dropped"))
        return context.wrap(context.wrap(trace, around("outer")), around("inner"))

    compiled = pipeline(Transform("own", twice, Stage.ACQUIRED)).compile(program())
    assert compiled.function([1.0]) == ["outer", "inner", -1.0]

    def without_a_trace(trace, context):
        context.wrap(around("lost"), trace)
        return trace

    with pytest.raises(TraceError, match="expected a Trace or an Outcome, not function"):
        pipeline(Transform("own", without_a_trace, Stage.ACQUIRED)).compile(program())


def test_a_stage_that_nobody_needs_is_not_reached():
    def unneeded(trace, context):
        return context.skip_stage()

    transform = Transform("own", unneeded, Stage.ACQUIRED, produces=Stage.FUNCTIONAL)
    mutating = program(call("fill_", X, 1.0, outputs=Y, effects=Effects(mutates=(0,))))
    compiled = pipeline(transform).compile(mutating)
    assert [t.stage for t in compiled.traces] == [Stage.ACQUIRED, Stage.CLAIMED]
    assert compiled.declined == ()


def test_invariants_hold_after_later_passes_too():
    def unclaim(trace, context):
        return trace.replace(calls=tuple(c.replace(executor=None) for c in trace.calls))

    transform = Transform("late", unclaim, Stage.CLAIMED)
    with pytest.raises(VerificationError, match=r"after late.*belongs to no executor"):
        pipeline(transform).compile(program())


def test_a_wrong_program_is_found_before_the_first_pass():
    with pytest.raises(VerificationError, match="after acquisition"):
        pipeline(check=1).compile(program(outputs=Z))
    lie = program(call("neg", X, outputs=vector("y", 3)), outputs=vector("y", 3))
    pipeline(check=1).compile(lie)
    with pytest.raises(VerificationError, match="computes"):
        pipeline(check=2).compile(lie)
    assert "verify" not in pipeline(check=0).compile(lie).seconds


# ------------------------------------------------------------------------------- broken passes


def test_a_pass_must_return_a_trace():
    transform = Transform("none", lambda t, c: None, Stage.ACQUIRED)
    with pytest.raises(
        TraceError, match="transform 'none' of plugin 'mine' returned NoneType, not a Trace"
    ):
        pipeline(transform).compile(program())


def test_a_pass_that_raises_is_named():
    transform = Transform("bad", lambda t, c: 1 / 0, Stage.ACQUIRED)
    with pytest.raises(
        TraceError, match="transform 'bad' of plugin 'mine' failed: ZeroDiv"
    ) as error:
        pipeline(transform).compile(program())
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert 'disable = ["mine"]' in error.value.hint


def test_an_error_of_tj_stays_what_it_is_and_names_the_pass():
    def missing(trace, context):
        return context.tables["expand"].require(call("none", X))

    with pytest.raises(RuleMissingError, match=r"no rule for 'num.none'") as error:
        pipeline(Transform("bad", missing, Stage.ACQUIRED)).compile(program())
    (note,) = error.value.__notes__
    assert note.startswith("tj: in transform 'bad' of plugin 'mine'")


def test_a_pass_of_tjs_own_that_fails_is_named_with_the_users_line():
    line = Source("model.py", 7, "y = -x")
    made = program(call("neg", X, outputs=Y).replace(source=line))

    def bad(trace, context):
        for one in trace.calls:
            assert not one.args
        return trace

    transform = Transform("bad", bad, Stage.ACQUIRED, falls_back=True)
    with pytest.raises(PassError, match="the pass 'bad' failed: AssertionError") as error:
        pipeline(transform, strict=False).compile(made)
    assert error.value.source == line
    assert isinstance(error.value.__cause__, AssertionError)
    with pytest.raises(TraceError, match="transform 'bad' of plugin 'mine' failed: AssertionErr"):
        pipeline(transform, strict=True).compile(made)


def dropping(after, falls_back=False):
    """A transform that drops the first call of a program, though another call needs it."""
    line = Source("model.py", 7, "y = -x")
    second = call("neg", Y, outputs=Z, source=line)
    made = program(call("neg", X, outputs=Y), second, outputs=Z)
    apply = lambda trace, context: trace.replace(calls=trace.calls[1:])  # noqa: E731
    return Transform("dropper", apply, after, falls_back=falls_back), made, line


@pytest.mark.parametrize("after", [Stage.ACQUIRED, Stage.CLAIMED])
@pytest.mark.parametrize("strict", [False, True])
def test_a_transform_that_drops_a_call_is_named_and_not_who_misses_it(after, strict):
    transform, made, line = dropping(after)
    message = "transform 'dropper' of plugin 'mine' made a wrong trace: .*uses 'y', which nothing"
    with pytest.raises(PluginError, match=message) as error:
        pipeline(transform, check=0, strict=strict).compile(made)
    assert error.value.source == line
    assert 'disable = ["mine"]' in error.value.hint
    with pytest.raises(VerificationError, match=message) as verified:
        pipeline(transform, check=1, strict=strict).compile(made)
    assert verified.value.source == line
    assert 'disable = ["mine"]' in verified.value.hint


def test_a_wrong_trace_names_the_distribution_or_the_argument():
    transform, made, _ = dropping(Stage.ACQUIRED)
    theirs = Ranked("mine", transform, "plugin 'mine' (tj-mine 1.0)")
    for check in (0, 1):
        with pytest.raises(TjError, match=r"of plugin 'mine' \(tj-mine 1.0\) made a wrong trace"):
            pipeline(theirs, check=check).compile(made)
        with pytest.raises(TjError, match=r"of the call \(transforms=\) made a wrong") as error:
            pipeline(Ranked(USER, transform), check=check).compile(made)
        assert "leave it out of transforms=" in error.value.hint
        assert "disable" not in error.value.hint


def test_a_transform_that_drops_a_result_is_named():
    def apply(trace, context):
        return trace.replace(outputs=())

    with pytest.raises(
        VerificationError, match="'bad' of plugin 'mine' made a wrong trace: it ret"
    ):
        pipeline(Transform("bad", apply, Stage.ACQUIRED), check=0).compile(program())


def test_the_next_transform_is_not_to_blame_either():
    transform, made, _ = dropping(Stage.ACQUIRED)
    theirs = Ranked("theirs", Transform("uses", lambda t, c: 1 / 0, Stage.FUNCTIONAL))
    with pytest.raises(PluginError, match="transform 'dropper' of plugin 'mine' made a wrong"):
        pipeline(transform, theirs, check=0).compile(made)
    with pytest.raises(TraceError, match="transform 'uses' of plugin 'theirs' failed: ZeroDiv"):
        pipeline(theirs, check=0).compile(made)


def test_a_transform_that_falls_back_does_where_it_drops_a_call():
    transform, made, _ = dropping(Stage.ACQUIRED, falls_back=True)
    with pytest.raises(PassError, match="the pass 'dropper' failed: VerificationError"):
        pipeline(transform, check=0, strict=False).compile(made)


def test_a_program_that_returns_what_nothing_defines_is_found():
    def apply(trace, context):
        return trace.replace(outputs=Z)

    with pytest.raises(PluginError, match=r"'mine' made a wrong trace: .* the program returns 'z'"):
        pipeline(Transform("bad", apply, Stage.CLAIMED), check=0).compile(program())


@pytest.mark.parametrize("name", ["dce", "cse", "claim", "generate"])
def test_each_pass_of_the_core_is_tjs_own(name, monkeypatch):
    module = "pipeline" if name in ("dce", "cse") else "claims"
    monkeypatch.setattr(f"tj_core.compile.{module}.{name}", lambda *_, **__: 1 / 0)
    shown = "codegen" if name == "generate" else name
    with pytest.raises(PassError, match=f"the pass '{shown}' failed: ZeroDivisionError"):
        pipeline(strict=False).compile(program())
    with pytest.raises(ZeroDivisionError):
        pipeline(strict=True).compile(program())


def test_what_a_plugin_answers_for_stays_its_error():
    def broken(trace, context):
        raise PluginError("the kernel of 'them' is wrong")

    for falls_back in (False, True):
        transform = Transform("bad", broken, Stage.ACQUIRED, falls_back=falls_back)
        with pytest.raises(PluginError, match="'them'"):
            pipeline(transform, strict=False).compile(program())
    broken_pass = Transform("bad", lambda t, c: 1 / 0, Stage.ACQUIRED)
    with pytest.raises(TraceError, match="of plugin 'mine' failed: ZeroDivisionError"):
        pipeline(broken_pass, strict=False).compile(program())


def test_a_core_pass_can_be_a_transform():
    transform = Transform("clean", lambda t, c: dce(t), Stage.ACQUIRED)
    compiled = pipeline(transform).compile(
        program(call("neg", X, outputs=Y), call("neg", X, outputs=Z))
    )
    assert [r.name for r in compiled.traces[-1].history] == ["dce", "claim"]


def test_a_program_that_is_declined_starts_again_without_the_later_stages_of_the_plugin():
    seen = []

    def noting(name, answer=None):
        def apply(trace, context):
            seen.append((name, trace.name, Stage.JOINT in context.produced))
            if answer is not None:
                return context.decline(answer)
            return trace.replace(name=f"{trace.name}_{name}")

        return apply

    transforms = [
        Ranked("mine", Transform("first", noting("first"), Stage.ACQUIRED)),
        Ranked(
            "grad",
            Transform("joint", noting("joint", Decline("no")), Stage.FUNCTIONAL, Stage.JOINT),
        ),
        Ranked("grad", Transform("split", noting("split"), Stage.JOINT, Stage.SPLIT)),
        Ranked("mine", Transform("last", noting("last"), Stage.SPLIT)),
    ]
    compiled = pipeline(*transforms).compile(program())
    assert seen == [
        ("first", "computation", True),
        ("joint", "computation_first", True),
        ("first", "computation", False),
        ("last", "computation_first", False),
    ]
    assert compiled.declined == (("joint", Decline("no")),)
    assert {t.stage for t in compiled.traces} == {Stage.ACQUIRED, Stage.CLAIMED}
    assert "without joint: no" in str(explain_compilation(compiled))


@pytest.mark.parametrize("keep", [False, True])
def test_nothing_is_removed_from_a_program_that_was_declined_because_it_raises(keep):
    answer = Decline("no", keep_all_calls=keep)
    declining = Transform("mine", lambda trace, c: c.decline(answer), Stage.ACQUIRED)
    calls = [call("neg", X, outputs=p) for p in (Y, Z)]
    compiled = pipeline(declining).compile(program(*calls))
    assert len(compiled.traces[-1].calls) == (2 if keep else 1)


def test_a_transform_that_makes_no_stage_declines_for_itself():
    declining = Transform("mine", lambda trace, c: c.decline(Decline("not today")), Stage.ACQUIRED)
    other = Transform("other", rename("forward"), Stage.ACQUIRED)
    compiled = pipeline(declining, other).compile(program())
    assert compiled.traces[-1].name == "forward"
    assert [name for name, _ in compiled.declined] == ["mine"]


def test_a_pipeline_knows_which_tags_its_transforms_read():
    plain = Transform("plain", rename("p"), after=Stage.ACQUIRED)
    reading = Transform("reading", rename("r"), after=Stage.CLAIMED, reads=frozenset({"SAVE"}))
    assert pipeline(plain, reading).reads("SAVE")
    assert not pipeline(plain, reading).reads("STATIC_MEMORY_LOCATION")
    assert not pipeline(plain).reads("SAVE")
    with pytest.raises(PluginError, match="reads must be a frozenset, not 'SAVE'"):
        Transform("wrong", rename("w"), after=Stage.ACQUIRED, reads="SAVE")

"""Claiming: the order of executors and bodies, and the records of claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tj_core.compile.codegen import generate
from tj_core.contract.decline import Decline
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.expansion import bind_outputs
from tj_core.contract.fusion import Fusion
from tj_core.contract.rules import RuleTable
from tj_core.errors import PluginError, RuleMissingError, TagError
from tj_core.ir.effects import Effects
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Context, Symbol
from tj_core.ir.tags import Tag, TagRegistry, TagSet
from tj_core.ir.trace import Body, Trace
from tj_core.passes.claim import NEEDS_GRADIENT, claim
from tj_core.source import Source
from tj_core.testing.numeric import call, expansions, vector
from tj_core.text.language import EMPTY_LANGUAGE
from tj_core.verify.verifier import verify

X, Y = vector("x", 2), vector("y", 2)
TAGS = TagRegistry()


def run(*args):
    return args


def executor(name, *symbols, check=None, fallback=False, implementation=run):
    claims: RuleTable[Claim] = RuleTable("claim")
    for symbol in symbols:
        claims.set(symbol, Claim(None if fallback else implementation, check))
    return Executor(name, claims.stamped(name, 0), fallback=fallback)


PYTHON = executor("python", "num.*", fallback=True)


def made(name, *args, out="y", **more):
    bare = call(name, *args, source=Source("f.py", 1), **more)
    return bind_outputs(bare, expansions.require(bare).value(bare), lambda i: f"{out}{i or ''}")


def claimed(trace, *executors, check=True):
    done = claim(trace, executors, TAGS)
    if check:
        verify(done.trace, level=2, tags=TAGS, expand=expansions, reached={Stage.CLAIMED})
    return done


def rows(done):
    """The claims and declines as plain data."""
    return [
        (r.call, r.symbol.name, r.executor, [n for n, _ in r.declined], r.depth)
        for r in done.records
    ]


def axpy(**more):
    return Trace((X,), (made("axpy", X, X, X, **more),), Y, language=EMPTY_LANGUAGE)


def test_a_whole_call_goes_to_the_first_that_takes_it():
    done = claimed(
        axpy(), executor("a"), executor("b", "num.axpy"), executor("c", "num.axpy"), PYTHON
    )
    assert rows(done) == [("y", "axpy", "b", ["a"], 0)]
    (taken,) = done.trace.calls
    assert taken.symbol == Symbol("b", "num.axpy")
    assert taken.executor == "b"
    assert taken.parent == "y"
    assert taken.outputs == Y
    assert taken.source == Source("f.py", 1)
    assert done.implementations == {taken.symbol: run}
    assert [c.symbol.qualname for c in taken.walk()] == [
        "b.num.axpy",
        "num.axpy",
        "num.mul",
        "num.add",
    ]
    assert done.trace.stage is Stage.CLAIMED
    (change,) = done.trace.history[-1].changes
    assert (change.call, change.plugin, change.rule) == ("y", "b", "num.axpy")


def test_a_part_goes_to_whoever_wants_it_and_the_rest_to_the_fallback():
    done = claimed(axpy(), executor("a", "num.mul"), PYTHON)
    assert rows(done) == [
        ("y", "axpy", None, ["a"], 0),
        ("y_0", "mul", "a", [], 1),
        ("y", "add", "python", ["a"], 1),
    ]
    assert [c.symbol.qualname for c in done.trace.calls] == ["a.num.mul", "num.add"]
    assert [c.parent for c in done.trace.calls] == ["y", "y"]


def test_the_fallback_takes_the_highest_call_nobody_wanted_any_part_of():
    trace = axpy()
    done = claimed(trace, executor("a", "num.neg"), PYTHON)
    assert rows(done) == [("y", "axpy", "python", ["a"], 0)]
    assert done.trace.calls == (trace.calls[0].replace(executor="python"),)


def test_without_other_executors_the_fallback_takes_everything_whole():
    assert rows(claimed(axpy(), PYTHON)) == [("y", "axpy", "python", [], 0)]


def test_reasons_are_kept():
    no = executor("a", "num.axpy", check=lambda c: Decline(f"size {c.flat_args[0].shape[0]}"))
    done = claimed(axpy(), no, executor("c"), PYTHON)
    assert done.records[0].declined == (("a", "size 2"), ("c", "has no claim for num.axpy"))


def test_the_reason_is_that_of_the_part_which_it_would_run():
    """An executor without a claim for the whole call gives its reason for a part."""
    no = executor("a", "num.add", check=lambda c: Decline(f"size {c.flat_args[0].shape[0]}"))
    done = claimed(axpy(), no, PYTHON)
    assert rows(done) == [("y", "axpy", "python", ["a"], 0)]
    assert done.records[0].declined == (("a", "num.add: size 2"),)


@pytest.mark.parametrize("answer", [False, None, 1, "it is too small", (True,), Decline])
def test_a_check_answers_true_or_declines(answer):
    vague = executor("a", "num.axpy", check=lambda c: answer)
    vague = replace(vague, provider="plugin 'p' (p-kernels 1.0)")
    with pytest.raises(PluginError) as error:
        claimed(axpy(), vague, PYTHON)
    assert error.value.message == (
        f"executor 'a' of plugin 'p' (p-kernels 1.0) answered {answer!r} in its check of num.axpy"
    )
    assert error.value.source == Source("f.py", 1)


def test_a_fallback_that_declines_gets_the_parts():
    picky = executor(
        "python",
        "num.*",
        fallback=True,
        check=lambda c: c.symbol.name != "axpy" or Decline("edited"),
    )
    done = claimed(axpy(), picky)
    assert rows(done)[0] == ("y", "axpy", None, ["python"], 0)
    assert done.records[0].declined == (("python", "edited"),)
    assert [c.symbol.name for c in done.trace.calls] == ["mul", "add"]


def test_fallbacks_are_asked_in_order():
    first = executor("p", "num.mul", fallback=True)
    done = claimed(axpy(), first, PYTHON)
    assert [c.executor for c in done.trace.calls] == ["python"]
    assert done.records[0].declined == (("p", "has no claim for num.axpy"),)


def test_a_call_that_nobody_runs_is_an_error():
    trace = Trace((X,), (made("neg", X),), Y, language=EMPTY_LANGUAGE)
    with pytest.raises(RuleMissingError, match=r"no executor runs num.neg") as error:
        claimed(trace, executor("a", check=None), executor("p", "other.*", fallback=True))
    assert "a: has no claim for num.neg; p: has no claim for num.neg" in error.value.message
    assert error.value.source == Source("f.py", 1)
    with pytest.raises(RuleMissingError, match="executors: there is none"):
        claimed(trace)


def test_a_claim_needs_an_implementation():
    with pytest.raises(PluginError, match=r"'a' claims num.axpy without an implementation"):
        claimed(axpy(), executor("a", "num.axpy", implementation=None))


def test_a_check_that_fails_is_the_executors_fault():
    broken = executor("a", "num.axpy", check=lambda c: c.nonsense)
    with pytest.raises(
        PluginError, match=r"executor 'a' failed in its check of num.axpy: Attr"
    ) as error:
        claimed(axpy(), broken, PYTHON)
    assert error.value.source == Source("f.py", 1)
    assert isinstance(error.value.__cause__, AttributeError)

    def own(c):
        raise TagError("mine")

    with pytest.raises(TagError, match="mine"):
        claimed(axpy(), executor("a", "num.axpy", check=own), PYTHON)


@pytest.mark.parametrize("what", ["can_fuse", "kernel", "cost"])
def test_what_is_said_of_fusion_is_the_executors_fault(what):
    broken = lambda c: c.nonsense  # noqa: E731
    questions = {"can_fuse": lambda c: True, "fuse": run, what: broken}
    fusing = replace(executor("a"), fusion=Fusion(**questions), provider="plugin 'p' (inline)")
    ask = fusing.cost if what == "cost" else fusing.fuses
    with pytest.raises(PluginError) as error:
        ask(made("neg", X))
    assert error.value.message.startswith(
        "executor 'a' of plugin 'p' (inline) failed in its check of num.neg: AttributeError"
    )


# ------------------------------------------------------------------------------- what stays whole


def test_what_needs_gradients_is_left_to_the_fallback():
    g = X.replace(requires_grad=True)
    trace = Trace(
        (g,), (made("axpy", g, g, g),), Y.replace(requires_grad=True), language=EMPTY_LANGUAGE
    )
    done = claimed(trace, executor("a", "num.axpy", "num.mul"), PYTHON)
    assert rows(done) == [("y", "axpy", "python", ["a"], 0)]
    assert done.records[0].declined == (("a", NEEDS_GRADIENT),)

    after = claimed(trace.replace(stage=Stage.SPLIT), executor("a", "num.axpy"), PYTHON)
    assert rows(after) == [("y", "axpy", "a", [], 0)]


@pytest.mark.parametrize("given", [False, True], ids=["new", "had one before"])
def test_after_a_write_that_brings_a_gradient_others_may_carry_one(given: bool) -> None:
    """A view of the written value has a gradient then, too, and its metadata do not say so."""
    x = X.replace(requires_grad=given)
    g = vector("g", 2, requires_grad=True)
    before, after = made("neg", Y, out="before"), made("neg", Y, out="after")
    effects = Effects(mutates=(0,), rebinds=((0, x.replace(requires_grad=True)),))
    write = made("mul", x, g, out="w").replace(effects=effects, body=None)
    calls = (before, write, after)
    outputs = tuple(c.outputs for c in calls)
    trace = Trace((x, Y, g), calls, outputs, language=EMPTY_LANGUAGE)
    done = claimed(trace, executor("a", "num.neg"), PYTHON, check=False)
    found = [r.executor for r in done.records]
    assert found == ["a", "python", "a" if given else "python"]


def test_mutating_calls_are_never_taken_apart():
    a0, v = vector("a0", 2), vector("_0", 2)
    body = Body((a0,), (call("neg", a0, outputs=v),), None, ((0, v),))
    for effects in (Effects(mutates=(0,)), Effects(rebinds=((0, X),))):
        trace = Trace(
            (X,), (call("neg_", X, body=body, effects=effects),), (), language=EMPTY_LANGUAGE
        )
        done = claimed(trace, executor("a", "num.neg"), PYTHON, check=False)
        assert [c.symbol.name for c in done.trace.calls] == ["neg_"]
        with pytest.raises(RuleMissingError, match=r"num\.neg_"):
            claimed(trace, executor("a", "num.neg"), executor("p", fallback=True))


def test_a_mutating_call_may_be_taken_whole():
    trace = Trace((X,), (made("fill_", X, 1.0),), Y, language=EMPTY_LANGUAGE)
    (taken,) = claimed(trace, executor("a", "num.fill_"), PYTHON).trace.calls
    assert taken.effects == trace.calls[0].effects
    assert taken.body.calls[0].effects == taken.effects


# ------------------------------------------------------------------------------- bodies


def test_a_shared_body_is_asked_once():
    asked = []

    def check(c):
        asked.append(c.flat_outs[0].name)
        return Decline("no")

    first = made("axpy", X, X, X)
    others = tuple(
        first.map_proxies(lambda p, i=i: p if p is X else vector(f"v{i}", 2)) for i in range(5)
    )
    claimed(
        Trace((X,), (first, *others), (), language=EMPTY_LANGUAGE),
        executor("a", "num.mul", "num.add", check=check),
        PYTHON,
    )
    assert len(asked) == 2


@pytest.mark.parametrize("named", [True, False])
def test_parts_that_an_executor_takes_are_asked_for_once(named):
    """Except where the reasons of those before name a value of the part."""
    asked = []

    def check(c):
        asked.append(c.label)
        return Decline(f"{c.label} is odd" if named else "odd")

    first = made("axpy", X, X, X, out="first")
    others = tuple(
        first.map_proxies(lambda p, i=i: p if p is X else vector(f"other{i}", 2)) for i in range(5)
    )
    program = Trace((X,), (first, *others), (), language=EMPTY_LANGUAGE)
    done = claimed(program, executor("a", "num.mul", check=check), executor("b", "num.mul"), PYTHON)
    assert [r.executor for r in done.records] == [None, "b", "python"] * 6
    reasons = [dict(r.declined)["a"] for r in done.records if r.executor == "b"]
    assert len({*reasons}) == (6 if named else 1)
    assert len(asked) == (7 if named else 2)  # and once if anybody wants a part


def test_parts_are_asked_with_the_tags_that_they_will_have():
    """An argument's tags are on the body's value for it, a call's on the calls of its body."""

    def check(c):
        return (any(c.tags) and any(p.tags for p in c.flat_args)) or Decline("not tagged")

    y = Y.replace(tags=TagSet(["LETTER"]))
    plain, marked = made("axpy", X, Y, X, out="p"), TagSet(["LETTER"])
    calls = (
        plain,
        made("axpy", X, y, X, out="q"),
        plain.replace(outputs=vector("r", 2), tags=marked),
        made("axpy", X, y, X, out="s").replace(tags=marked),
    )
    trace = Trace((X, y), calls, (), language=EMPTY_LANGUAGE)
    tags = TagRegistry([("test", Tag("LETTER"))])
    done = claim(trace, (executor("a", "num.mul", check=check), PYTHON), tags)
    taken = [c.symbol.qualname for c in done.trace.calls]
    assert taken == ["num.axpy"] * 3 + ["a.num.mul", "num.add"]


def test_under_another_context_it_is_asked_again_and_sees_it():
    asked = []

    def check(c):
        asked.append(c.context.get("mode"))
        return c.context.get("mode") == 2 or Decline("another mode")

    first = made("axpy", X, X, X, out="p", context=Context.of(mode=1))
    second = first.replace(outputs=vector("q", 2), context=Context.of(mode=2))
    done = claimed(
        Trace((X,), (first, second), (), language=EMPTY_LANGUAGE),
        executor("a", "num.mul", check=check),
        PYTHON,
    )
    assert [(c.symbol.qualname, c.context.get("mode")) for c in done.trace.calls] == [
        ("num.axpy", 1), ("a.num.mul", 2), ("num.add", 2),
    ]  # fmt: skip
    assert asked == [1, 2, 2]
    # Inside, the context is relative to the call that holds the body.
    assert done.trace.calls[1].body.calls[0].context == Context()


def deep(levels):
    """A call with nested bodies, of which the innermost negates."""
    a0, v = vector("a0", 2), vector("_0", 2)
    inner = call("neg", a0, outputs=v)
    for _ in range(levels):
        inner = call("outer", a0, outputs=v, body=Body((a0,), (inner,), v))
    return call("outer", X, outputs=Y, body=inner.body, source=Source("f.py", 1))


def test_descending_goes_as_deep_as_somebody_wants():
    done = claimed(
        Trace((X,), (deep(3),), Y, language=EMPTY_LANGUAGE), executor("a", "num.neg"), PYTHON
    )
    assert [r.depth for r in done.records] == [0, 1, 2, 3]
    assert [c.symbol.qualname for c in done.trace.calls] == ["a.num.neg"]
    assert done.trace.calls[0].parent == "y"
    assert {r.source for r in done.records} == {Source("f.py", 1)}


def test_values_that_a_body_hands_on():
    """Through two levels: the outer call's output is the program's input."""
    a0, v0 = vector("a0", 2), vector("_0", 2)
    body = Body((a0,), (call("neg", a0, outputs=v0),), (v0, a0))
    inner = call("both", a0, outputs=(v0, vector("_1", 2)), body=body)
    outer_body = Body((a0,), (inner,), (v0, vector("_1", 2)))
    z = vector("z", 2)
    outer = call("both", X, outputs=(Y, z), body=outer_body)
    trace = Trace(
        (X,), (outer, made("add", z, Y, out="s")), [z, vector("s", 2)], language=EMPTY_LANGUAGE
    )
    done = claimed(trace, executor("a", "num.neg"), PYTHON)
    neg, add = done.trace.calls
    assert (neg.args, neg.outputs) == ((X,), Y)
    assert add.args == (X, Y)
    assert done.trace.outputs == [X, vector("s", 2)]


def test_arguments_that_become_one_share_a_formal():
    z = vector("z", 2)
    a0, a1, v0 = vector("a0", 2), vector("a1", 2), vector("_0", 2)
    both = call(
        "both", X, outputs=(Y, z), body=Body((a0,), (call("neg", a0, outputs=v0),), (v0, a0))
    )
    body = Body((a0, a1), (call("add", a0, a1, outputs=v0),), v0)
    user = call("plus", X, z, outputs=vector("w", 2), body=body)
    done = claimed(
        Trace((X,), (both, user), vector("w", 2), language=EMPTY_LANGUAGE),
        executor("a", "num.neg"),
        PYTHON,
    )
    plus = done.trace.calls[1]
    assert plus.args == (X, X)
    assert [f.name for f in plus.body.inputs] == ["a0"]


def test_each_call_of_an_executor_with_state_has_its_own():
    made_for = []

    def state(call):
        made_for.append(call.symbol.qualname)
        return [len(made_for)]

    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("num.mul", Claim(run, state=state))
    first, second = made("mul", X, X, out="a"), made("mul", X, X, out="b")
    trace = Trace((X,), (first, second), (first.outputs, second.outputs), language=EMPTY_LANGUAGE)
    done = claimed(trace, Executor("keeper", claims.stamped("keeper", 0)), PYTHON)
    kept = [dict(c.kwargs)["state"] for c in done.trace.calls]
    assert [(c.text, c.value) for c in kept] == [("_state_a", [1]), ("_state_b", [2])]
    assert made_for == ["num.mul", "num.mul"]
    assert all(c.effects.ordered == ("state:keeper",) for c in done.trace.calls)
    assert all(c.body.calls[0].kwargs == () for c in done.trace.calls)
    program = generate(done.trace, done.implementations)
    assert "state=_state_a" in program.source
    assert "state=_state_b" in program.source


def test_a_call_without_results_has_a_state_of_its_own_too():
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("num.note", Claim(run, state=lambda call: []))
    note = call("note", X, effects=Effects(ordered=("side_effect",)))
    done = claimed(
        Trace((X,), (note, note), X, language=EMPTY_LANGUAGE),
        Executor("keeper", claims.stamped("keeper", 0)),
        check=False,
    )
    first, second = (dict(c.kwargs)["state"].value for c in done.trace.calls)
    assert first is not second


def test_what_is_kept_for_a_call_is_not_given_to_another_of_its_name():
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("num.neg", Claim(run, state=lambda call: call.flat_outs[0].shape))
    owner, states = Executor("keeping", claims.stamped("keeping", 0)), {}
    rule = owner.claims.get(Symbol("num", "neg"))
    calls = [made("neg", vector("x", n)) for n in (2, 3, 2)]
    kept = [owner.state_of(c, rule, states, f"state_{c.label}") for c in calls]
    assert [constant.value for constant in kept] == [(2,), (3,), (2,)]
    assert kept[0] is kept[2]

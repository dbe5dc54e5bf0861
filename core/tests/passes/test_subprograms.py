"""Passes on calls with operand programs: dead code, claiming, generated code, text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tj_core.compile.codegen import generate
from tj_core.contract.dialects import Dialect
from tj_core.contract.executors import Claim, Decline, Executor
from tj_core.contract.rules import RuleTable
from tj_core.edit.subprograms import summed_effects
from tj_core.errors import TjError, VerificationError
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Context
from tj_core.ir.trace import BoundSymbol, Subprogram, Trace
from tj_core.passes.claim import claim
from tj_core.passes.dce import dce
from tj_core.source import Source
from tj_core.testing.numeric import call, expansions, vector
from tj_core.testing.subprograms import (
    LANGUAGE,
    TAGS,
    WORDS,
    X,
    Y,
    Z,
    body,
    once,
    program,
    run,
    whole,
)
from tj_core.text.language import Language
from tj_core.verify.verifier import verify

# ------------------------------------------------------------------------------- running


def test_regions_run_as_functions_and_see_nothing_outside():
    region = body(("add", "x", "y"), ("neg", "t0"), inputs=(X, Y))
    trace = whole(once(region, X, Y))
    assert run(trace) == ([-4.0, -7.0],)
    assert "body" in generate(trace).source
    scope = {"num": type("num", (), {k: staticmethod(v) for k, v in WORDS.items()})}
    source = str(trace).replace("from tj_core.testing.numeric import num", "")
    exec(source, scope)
    assert scope["computation"]([1.0, 2.0], [3.0, 5.0]) == ([-4.0, -7.0],)


def test_a_region_called_like_a_value_of_the_generated_program():
    """Names of functions stay apart from the names of values, and of builtins."""
    region = body(("neg", "x"))
    region = Subprogram(region.program.replace(name="len"), (0,), True)
    assert run(whole(once(region, X))) == ([-1.0, -2.0],)


def test_an_error_inside_names_the_call_inside_and_the_one_outside():
    region = body(("reciprocal", "x"))
    source = Source("model.py", 7, "y = 1 / x")
    region = Subprogram(
        region.program.replace(
            calls=tuple(c.replace(source=source) for c in region.program.calls)
        ),
        (0,), True,
    )  # fmt: skip
    function = generate(whole(once(region, X))).function
    with pytest.raises(ZeroDivisionError) as raised:
        function([0.0, 1.0], [0.0, 0.0])
    notes = "\n".join(raised.value.__notes__)
    assert "t0 = num.reciprocal(x)" in notes
    assert "model.py:7" in notes
    assert "(z,) = num.once(body, x)" in notes


# ------------------------------------------------------------------------------- text


def test_constants_inside_travel_with_the_whole_program():
    value = object()
    inner = BoundSymbol(call("neg", X).symbol, (X, Constant("_object", value, named=False)), (), Z)
    region = Subprogram(Trace((X,), (inner,), (Z,), "body", language=LANGUAGE), (0,), True)
    trace = Trace((X,), (once(region, X),), (Z,), language=LANGUAGE)
    assert trace.constants() == {"_object": value}
    assert Trace.parse(str(trace), language=LANGUAGE, constants=trace.constants()) == trace


def test_the_context_of_a_region_is_that_of_its_call():
    """The context of a region is printed only if it differs from its call's."""
    language = Language(
        [Dialect("num", (), lambda s: WORDS[s.name])],
        {"grad": lambda value: f"contextlib.nullcontext({value})"},
    )
    off = Context.of(grad=False)
    inside = program("body", (X,), ("neg", "x"), context=off)
    inside = inside.replace(
        calls=tuple(c.replace(context=off) for c in inside.calls), language=language
    )
    trace = Trace(
        (X,), (once(Subprogram(inside, (0,), True), X, context=off),), (Z,),
        context=Context.of(grad=True), language=language,
    )  # fmt: skip
    text = str(trace)
    assert text.count("nullcontext(False)") == 1
    assert text.count("context={'grad': False}") == 1
    assert Trace.parse(text, language=language) == trace


# ------------------------------------------------------------------------------- dead code


@pytest.mark.parametrize(
    ("region", "kept"),
    [(body(("neg", "x")), False), (body(("noise", "x")), True),
     (body(("fill_", "x", 2.0), ("neg", "x")), True)],
    ids=["pure", "random", "writes"],
)  # fmt: skip
def test_dead_calls_go_by_their_regions(region, kept):
    made = once(region, X)
    made = made.replace(effects=summed_effects(made))
    trace = whole(made, outputs=(X,))
    assert (dce(trace) is trace) == kept


def test_dead_calls_inside_of_regions_go():
    region = body(("neg", "x"), ("reciprocal", "x"), ("noise", "x"), outputs=["t0"])
    trace = dce(whole(once(region, X)))
    (left,) = trace.calls[0].subprograms
    assert [c.symbol.name for c in left.program.calls] == ["neg", "noise"]
    assert dce(trace) is trace


def branches():
    """One of two programs, each with an unused call."""
    yes = body(("neg", "x"), ("reciprocal", "x"), outputs=["t0"], operands=(1,))
    no = body(("reciprocal", "x"), ("neg", "x"), outputs=["t1"], operands=(1,))
    no = replace(no, program=no.program.replace(name="no"))
    return call("either", vector("flag", 1), yes, no, X, outputs=(Z,))


def test_passes_edit_each_region_of_a_call():
    trace = whole(branches(), inputs=(vector("flag", 1), X))
    cleaned = dce(trace)
    assert [[c.symbol.name for c in r.program.calls] for r in cleaned.calls[0].subprograms] == [
        ["neg"], ["neg"]
    ]  # fmt: skip
    claimed = claim(trace, [executor("mine", "num.neg"), fallback(True)], TAGS).trace
    owners = [{c.executor for c in r.program.calls} for r in claimed.calls[0].subprograms]
    assert owners == [{"python", "mine"}] * 2


# ------------------------------------------------------------------------------- claiming


def executor(name, *symbols, **more):
    claims = RuleTable("claim")
    for symbol in symbols:
        claims.set(symbol, Claim(WORDS[symbol.partition(".")[2]]))
    return Executor(name, claims, **more)


def fallback(shares):
    claims = RuleTable("claim")
    claims.set("num.*", Claim(None))
    claims.set("num.once", Claim(None, shares_subprograms=shares))
    claims.set("num.either", Claim(None, shares_subprograms=shares))
    return Executor("python", claims, fallback=True)


@pytest.mark.parametrize("shares", [True, False])
def test_executors_run_calls_inside_where_the_operation_lets_them(shares):
    trace = whole(once(body(("neg", "x"), ("reciprocal", "t0")), X))
    mine = executor("mine", "num.neg")
    claimed = claim(trace, [mine, fallback(shares)], TAGS)
    (region,) = claimed.trace.calls[0].subprograms
    assert [c.executor for c in region.program.calls] == ["mine" if shares else "python", "python"]
    verify(claimed.trace, level=2, tags=TAGS, expand=expansions, reached=[Stage.CLAIMED])
    assert run(claimed.trace, claimed.implementations) == ([-1.0, -0.5],)
    assert [r.depth for r in claimed.records] == [0, 1, 1]
    text = str(claimed.trace)
    again = Trace.parse(text, language=Language([
        Dialect("num", (), lambda s: WORDS[s.name]), Dialect("mine", (), lambda s: None),
    ]))  # fmt: skip
    assert again == claimed.trace


def test_no_executor_gets_calls_that_need_gradients():
    grad = X.replace(requires_grad=True)
    trace = whole(
        once(body(("neg", "x"), inputs=(grad,)), grad, outputs=Z.replace(requires_grad=True)),
        inputs=(grad, Y), outputs=(Z.replace(requires_grad=True),),
    )  # fmt: skip
    claimed = claim(trace, [executor("mine", "num.neg"), fallback(True)], TAGS)
    assert [c.executor for c in claimed.trace.calls[0].subprograms[0].program.calls] == ["python"]


def _negates(c):
    first = c.subprograms[0].program.calls[0].symbol.name
    return first == "neg" or Decline(f"it begins with {first}")


def test_an_executor_may_take_the_operation_and_gets_functions():
    seen = []

    def mine(function, x):
        seen.append(function)
        return (function(x)[0] * 2,)

    claims = RuleTable("claim")
    claims.set("num.once", Claim(mine, _negates))
    claimed = claim(
        whole(once(body(("neg", "x")), X)), [Executor("mine", claims), fallback(True)], TAGS
    )
    verify(claimed.trace, level=2, tags=TAGS, expand=expansions, reached=[Stage.CLAIMED])
    assert run(claimed.trace, claimed.implementations) == ([-1.0, -2.0] * 2,)
    assert callable(seen[0])


def test_unclaimed_calls_inside_are_found():
    made = once(body(("neg", "x")), X).replace(executor="python")
    trace = Trace((X,), (made,), (Z,), stage=Stage.CLAIMED, language=LANGUAGE)
    with pytest.raises(
        VerificationError, match=r"subprogram 'body' in which num\.neg belongs to no exec"
    ):
        verify(trace, tags=TAGS, reached=[Stage.CLAIMED])


def test_wrong_metadata_inside_is_found():
    region = body(("neg", "x"))
    wrong = region.program.calls[0].replace(outputs=vector("t0", 3))
    region = Subprogram(region.program.replace(calls=(wrong,), outputs=(wrong.outputs,)), (0,))
    with pytest.raises(
        TjError, match=r"has a subprogram 'body' in which num.neg computes .cpu f64"
    ):
        whole(once(region, X))

"""The verifier: every kind of fault, at top level and in bodies, with its message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tj_core.contract.expansion import bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.errors import CannotExpandError, VerificationError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import DType
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Context, Symbol
from tj_core.ir.tags import TagRegistry, TagSet
from tj_core.ir.trace import Body, BoundSymbol, PassRecord, Subprogram, Trace
from tj_core.source import Source
from tj_core.testing.numeric import call, expansions, vector
from tj_core.text.language import EMPTY_LANGUAGE
from tj_core.verify.verifier import CHECK_FORM, CHECK_METADATA, level_for, verify

X, Y, Z = vector("x", 2), vector("y", 2), vector("z", 2)
A0, A1, V0, V1 = (vector(n, 2) for n in ("a0", "a1", "_0", "_1"))
NEG = call("neg", X, outputs=Y)
TAGS = TagRegistry()


def check(trace, level=1, **more):
    verify(trace, level=level, tags=TAGS, expand=expansions, **more)


def wrong(match, trace, **more):
    with pytest.raises(VerificationError, match=match) as error:
        check(trace, **more)
    return error.value


def program(*calls, inputs=(X,), outputs=(), **more):
    return Trace(inputs, calls, outputs, **{"language": EMPTY_LANGUAGE, **more})


def region(*calls, inputs=(X,), outputs=(), name="fn", **more):
    return Subprogram(
        Trace(inputs, calls, outputs, name, **{"language": EMPTY_LANGUAGE, **more}),
        (0,) * len(inputs),
    )


def operation(*regions):
    return program(call("map", X, *regions, outputs=Z))


FN = call("neg", X, outputs=vector("fn", 2))


def in_body(*calls, outputs=V0, **more):
    return program(call("f", X, outputs=Y, body=Body((A0,), calls, outputs), **more))


def test_a_sample_of_programs_is_verified_with_metadata():
    sizes = [vector("x", n) for n in range(200)]
    programs = [program(call("neg", x, outputs=Y), inputs=(x,)) for x in sizes]
    levels = [level_for("sample", p) for p in programs]
    assert levels == [level_for("sample", p) for p in programs]
    assert set(levels) == {CHECK_FORM, CHECK_METADATA}
    assert 10 <= levels.count(CHECK_METADATA) <= 45
    assert [level_for(n, programs[0]) for n in (0, 1, 2)] == [0, 1, 2]


def test_a_good_program():
    check(program(NEG, call("add", X, Y, outputs=Z), outputs=[Z, 3]), level=2)


def test_level_0_checks_nothing():
    check(program(call("neg", Y)), level=0)


# ------------------------------------------------------------------------------- form

FAULTS = [
    ("uses 'y', which nothing defines", program(call("neg", Y))),
    (
        "uses 'x' as 'cpu f64\\[3\\]' {}, which is defined as 'cpu f64\\[2\\]' {}",
        program(call("neg", vector("x", 3))),
    ),
    (
        "uses 'x' as 'cpu f64\\[2\\]' {SAVE}, which is defined",
        program(call("neg", X.replace(tags=TagSet(["SAVE"])))),
    ),
    ("defines 'y' again", program(NEG, NEG)),
    ("defines 'x' again", program(call("neg", X, outputs=vector("x", 3)))),
    ("defines 'x' again", program(call("f", outputs=X))),
    ("defines 'y' again", program(call("f", X, outputs=(Y, Y)))),
    ("the program returns 'y', which nothing defines", program(outputs=Y)),
    ("two inputs are called 'x'", program(inputs=(X, X))),
    (
        "an input is called 'not it', which is no Python name",
        program(inputs=(vector("not it", 1),)),
    ),
    ("an input is called 'if', which is no Python name", program(inputs=(vector("if", 1),))),
    (
        "defines '_3', which is a name for values in bodies",
        program(call("f", outputs=vector("_3", 1))),
    ),
    (
        "'num', which is the name of a namespace or constant",
        program(call("f", outputs=vector("num", 1))),
    ),
    (
        "'_c', which is the name of a namespace or constant",
        program(call("f", Constant("_c", 1, named=False), outputs=vector("_c", 1))),
    ),
    (
        "two constants are called '_c'",
        program(*(call("f", Constant("_c", [], named=False)) for _ in range(2))),
    ),
    ("has a dict or slice among its outputs", program(call("f", outputs=(1, {"k": Y})))),
    ("has namespace 'a.b', which is no Python name", program(BoundSymbol(Symbol("a.b", "c")))),
    ("holds nan, which no literal spells", program(call("f", float("nan")))),
    ("holds inf, which no literal spells", program(call("f", [float("inf")]))),
    ("holds \\(nan\\+0j\\), which no literal spells", program(call("f", complex(float("nan"))))),
    ("holds <class 'int'>, which no literal spells", program(call("f", int))),
    (
        "has an effect on an argument beyond its 1",
        program(call("f", X, effects=Effects(mutates=(1,)))),
    ),
    (
        "has an effect on an argument beyond its 1",
        program(call("f", X, effects=Effects(rebinds=((1, X),)))),
    ),
    (
        "has an effect on an argument beyond its 1",
        program(call("f", X, outputs=Y, effects=Effects(aliases=(Alias(0, "arg", 1),)))),
    ),
    (
        "has an alias of an output beyond its 1",
        program(call("f", X, outputs=Y, effects=Effects(aliases=(Alias(1, "internal"),)))),
    ),
    (
        "has an alias of an output beyond its 1",
        program(call("f", X, outputs=Y, effects=Effects(aliases=(Alias(0, "out", 1),)))),
    ),
    (
        "rebinds 'x' under another name, 'y'",
        program(call("f", X, effects=Effects(rebinds=((0, Y),)))),
    ),
    ("unknown tag 'NONE'", program(call("f", X, tags=TagSet(["NONE"])))),
    ("unknown tag 'NONE'", program(call("f", outputs=Y.replace(tags=TagSet(["NONE"]))))),
    ("unknown tag 'NONE'", program(inputs=(X.replace(tags=TagSet(["NONE"])),))),
    ("'SAVE' cannot be put on a trace", program(tags=TagSet(["SAVE"]))),
    ("cannot be put on a call", program(call("f", X, tags=TagSet(["STATIC_MEMORY_LOCATION"])))),
    ("lost the context grad", program(NEG, context=Context.of(grad=True))),
    # ---- bodies
    (
        "has a body with the inputs \\(a0: cpu f64\\[3\\]\\)",
        program(call("f", X, body=Body((vector("a0", 3),), (), None))),
    ),
    (
        "has a body with the inputs \\(\\), but its arguments need \\(a0",
        program(call("f", X, body=Body((), (), None))),
    ),
    ("has a body with the inputs", program(call("f", X, X, body=Body((A0, A1), (), None)))),
    (
        "has a body with the inputs",
        program(call("f", X, body=Body((A0.replace(tags=TagSet(["SAVE"])),), (), None))),
    ),
    ("a body in which num.neg uses '_1', which nothing", in_body(call("neg", V1, outputs=V0))),
    (
        "defines 't', which is no name for a value in a body",
        in_body(call("neg", A0, outputs=vector("t", 2))),
    ),
    (
        "a body in which num.neg unknown tag 'NO'",
        in_body(call("neg", A0, outputs=V0, tags=TagSet(["NO"]))),
    ),
    ("has a body that returns '_0', which nothing defines", in_body()),
    ("has a body with other outputs", in_body(outputs=(A0, A0))),
    (
        "has a body whose output is 'cpu f64\\[1\\]', not 'cpu f64\\[2\\]'",
        in_body(call("half", A0, outputs=vector("_0", 1)), outputs=vector("_0", 1)),
    ),
    (
        "a body in which num.g has a body in which num.neg uses '_7'",
        in_body(
            call(
                "g",
                A0,
                outputs=V0,
                body=Body((A0,), (call("neg", vector("_7", 2), outputs=V0),), V0),
            )
        ),
    ),
    (
        "has a body that updates argument 0, which it does not mutate",
        program(call("f", X, body=Body((A0,), (), None, ((0, A0),)))),
    ),
    (
        "has a body that updates argument 0 with '_0', which nothing defines",
        program(
            call("f", X, body=Body((A0,), (), None, ((0, V0),)), effects=Effects(mutates=(0,)))
        ),
    ),
    # ---- regions
    (
        "has a subprogram 'fn' in which num.neg uses 'x', which nothing defines",
        operation(region(NEG, inputs=())),
    ),
    ("has a subprogram 'fn' that returns 'y', which nothing defines", operation(region(outputs=Y))),
    (
        "has a subprogram 'fn' in which num.neg defines 'x' again",
        operation(region(call("neg", X, outputs=vector("x", 1)))),
    ),
    ("has a subprogram 'fn' with 0 operands for 1 inputs", operation(Subprogram(region().program))),
    (
        "has a subprogram 'fn' with an operand beyond the call's 1 arguments",
        operation(Subprogram(region().program, (1,))),
    ),
    (
        r"has a subprogram 'fn' whose input 'x' is 'cpu f64\[3\]', not 'cpu f64\[2\]'",
        operation(region(inputs=(vector("x", 3),))),
    ),
    (
        "has a subprogram 'fn' that returns 0 of 1 values",
        operation(Subprogram(region().program, (0,), returns=True)),
    ),
    (
        "has a subprogram 'fn' with a stage of its own",
        operation(region(stage=Stage.FUNCTIONAL)),
    ),
    ("has two subprograms called 'fn'", operation(region(), region(NEG))),
    ("has a subprogram called 'fn', as a value is", program(FN, operation(region()).calls[0])),
    (
        "has a subprogram called 'num', which is the name of a namespace or constant",
        operation(region(name="num")),
    ),
    (
        "has a subprogram 'fn' with an input called '_0', which is a name for values in bodies",
        operation(region(inputs=(V0,))),
    ),
    (
        "has a subprogram 'fn' with two inputs of one name",
        operation(Subprogram(region(inputs=(X, X)).program, (0, 0))),
    ),
    (
        "has a subprogram 'fn' in which num.neg lost the context grad",
        operation(region(NEG, context=Context.of(grad=True))),
    ),
]


@pytest.mark.parametrize(("match", "trace"), FAULTS, ids=range(len(FAULTS)))
def test_faults_of_form(match, trace):
    wrong(match, trace)


def test_an_argument_may_be_an_output_under_its_own_name():
    check(program(call("fill_", X, 1.0, outputs=X, effects=Effects(mutates=(0,))), outputs=X))


def test_after_rebinding_the_new_metadata_counts():
    small = vector("x", 1)
    shrink = call("shrink_", X, effects=Effects(rebinds=((0, small),)))
    check(program(shrink, call("neg", small, outputs=vector("y", 1)), outputs=small))
    wrong("uses 'x' as 'cpu f64\\[2\\]'", program(shrink, NEG))


def test_bodies_may_be_silent_on_autograd():
    out = Y.replace(requires_grad=True)
    check(program(call("f", X, outputs=out, body=Body((A0,), (call("neg", A0, outputs=V0),), V0))))


# ------------------------------------------------------------------------------- stages


def test_invariants_hold_from_their_stage_on():
    mutating = program(
        call("fill_", X, 1.0, outputs=Y, effects=Effects(mutates=(0,))), stage=Stage.SPLIT
    )
    check(mutating)  # nobody made it functional
    wrong("call 'y' \\(num.fill_\\) mutates", mutating, reached={Stage.ACQUIRED, Stage.FUNCTIONAL})
    rebinding = program(call("f", X, effects=Effects(rebinds=((0, X),))))
    wrong("mutates", rebinding, reached={Stage.FUNCTIONAL})
    wrong("belongs to no executor", program(NEG), reached={Stage.CLAIMED})
    check(program(NEG.replace(executor="python")), reached=set(Stage))


def test_the_forward_uses_nothing_of_the_backward():
    tangent = vector("g", 2).replace(tags=TagSet(["BACKWARD"]))
    back = call("neg", tangent, outputs=Y).replace(tags=TagSet(["BACKWARD"]))
    joint = {"reached": {Stage.JOINT}}
    check(program(NEG.replace(outputs=Z), back, inputs=(X, tangent), outputs=[Z, Y]), **joint)
    late = program(back, call("neg", Y, outputs=Z), inputs=(X, tangent))
    wrong("call 'z' .* uses a value of the backward", late, **joint)
    early = program(call("neg", tangent, outputs=Z), inputs=(X, tangent))
    wrong("uses a value of the backward", early, **joint)


def test_the_forward_has_no_call_of_the_backward():
    back = NEG.replace(tags=TagSet(["BACKWARD"]))
    wrong("stands in the forward", program(back), reached={Stage.SPLIT})
    tangent = X.replace(tags=TagSet(["BACKWARD"]))
    taken = back.replace(args=(tangent,))
    check(program(taken, inputs=(tangent,)), reached={Stage.JOINT, Stage.SPLIT})


def test_values_are_copied_back_at_the_end():
    def copy(p, value):
        effects = Effects(mutates=(0,), copies_back=True)
        return BoundSymbol(Symbol("tj", "copy_back"), (p, value), effects=effects)

    functional = {"reached": {Stage.FUNCTIONAL}}
    check(program(NEG, copy(X, Y), outputs=()), **functional)
    wrong("comes after a value was copied back", program(copy(X, X), NEG), **functional)
    twice = program(NEG, copy(X, Y), copy(X, Y), outputs=())
    wrong("uses one that was copied back to", twice, **functional)
    wrong("copies back to no input", program(NEG, copy(Y, X), outputs=()), **functional)
    wrong("returns an input that was copied", program(NEG, copy(X, Y), outputs=X), **functional)


def test_what_an_executor_overwrites_nobody_uses_after():
    effects = Effects(mutates=(0,), aliases=(Alias(0, "arg", 0),))
    region = NEG.replace(effects=effects, executor="loop")
    functional = {"reached": {Stage.FUNCTIONAL}}
    check(program(region, call("neg", Y, outputs=Z), outputs=(Y, Z)), **functional)
    wrong("mutates", program(region.replace(executor=None)), **functional)
    wrong("mutates", program(region.replace(effects=replace(effects, aliases=()))), **functional)
    wrong("mutates", program(NEG, region.replace(args=(Y,), outputs=Z), outputs=Z), **functional)
    used = program(region, call("neg", X, outputs=Z), outputs=(Y, Z))
    wrong("uses an input that was overwritten", used, **functional)
    wrong("returns an input that was", program(region, outputs=(X, Y)), **functional)


# ------------------------------------------------------------------------------- metadata

F32 = DType("float32", 32, "float")


def axpy():
    made = call("axpy", X, X, X)
    return bind_outputs(made, expansions.require(made).value(made), lambda _: "y")


def lying(lie):
    """`axpy` with a wrong fact in its body, which its output repeats."""
    body = axpy().body
    mul, add = body.calls
    mul = mul.replace(outputs=mul.outputs.replace(**lie))
    add = add.replace(args=(mul.outputs, add.args[1]))
    return axpy().replace(body=Body(body.inputs, (mul, add), body.outputs))


def test_a_lie_about_metadata_is_caught():
    lie = program(call("neg", X, outputs=vector("y", 3)))
    check(lie)
    wrong("computes \\[cpu f64\\[2\\]\\], not \\[cpu f64\\[3\\]\\] as the trace says", lie, level=2)


@pytest.mark.parametrize(
    "outputs", [(Y,), (Y, Z, Y), (Y, 3), Y.replace(dtype=F32), Y.replace(requires_grad=True), 3]
)
def test_outputs_of_another_kind_are_lies(outputs):
    trace = program(call("neg", X, outputs=outputs))
    if outputs == (Y,):
        check(trace, level=2)  # as many leaves: the shape of the tree is the frontend's
    else:
        wrong("computes|defines", trace, level=2)


def test_a_lie_in_a_body_is_caught():
    check(program(lying({"requires_grad": True})), level=2)  # on which bodies may be silent
    wrong("has a body in which num.mul computes", program(lying({"dtype": F32})), level=2)


def test_a_lie_in_a_nested_body_is_caught():
    inner = lying({"dtype": F32}).map_proxies(lambda p: A0 if p is X else V0)
    body = Body((A0,), (inner,), V0)
    error = wrong("in which num.axpy has a body in which num.mul comp",
                  program(call("f", X, outputs=Y, body=body)), level=2)  # fmt: skip
    assert "call 'y' (num.f)" in error.message


def test_an_edited_call_is_what_its_body_is():
    edited = axpy().replace(symbol=Symbol("num", "axpy", "rewritten"))
    check(program(edited), level=2)
    lie = edited.replace(outputs=Y.replace(dtype=F32))
    wrong("has a body whose output is", program(lie), level=2)


def test_a_call_that_cannot_be_expanded_is_taken_at_its_word():
    def refuse(given):
        raise CannotExpandError("depends on data")

    table = RuleTable("expand")
    table.set("num.neg", refuse)
    verify(program(call("neg", X, outputs=vector("y", 9))), level=2, tags=TAGS, expand=table)
    check(program(call("unheard", X, outputs=vector("y", 9))), level=2)


def test_a_rule_that_fails_is_a_fault_of_the_call():
    three = vector("w", 3)
    trace = program(call("add", X, three, outputs=Y), inputs=(X, three))
    wrong("cannot be expanded: ValueError: sizes differ", trace, level=2)


def test_rules_see_the_whole_context_of_a_call_in_a_body():
    seen = []

    def rule(given):
        seen.append(given.context)
        return expansions.require(call("neg", X)).value(given)

    table = RuleTable("expand")
    table.set("num.neg", rule)
    inner = call("neg", A0, outputs=V0, context=Context.of(mode=2))
    outer = call(
        "f", X, outputs=Y, body=Body((A0,), (inner,), V0), context=Context.of(grad=0, mode=1)
    )
    verify(program(outer), level=2, tags=TAGS, expand=table)
    assert seen == [Context.of(grad=0, mode=2)]


# ------------------------------------------------------------------------------- telling


def long(fault):
    calls = [call("f", X, i, outputs=vector(f"v{i}", 2)) for i in range(40)]
    calls[fault] = call(
        "f", vector("lost", 2), outputs=vector(f"v{fault}", 2), source=Source("m.py", 7)
    )
    return program(
        *calls, stage=Stage.FUNCTIONAL, history=(PassRecord("acquire"), PassRecord("mine"))
    )


@pytest.mark.parametrize(("fault", "first", "last"), [(0, 0, 10), (20, 10, 30), (39, 29, 39)])
def test_the_calls_around_the_fault_are_shown(fault, first, last):
    error = wrong("'lost'", long(fault))
    lines = error.hint.splitlines()
    shown = [line.replace("-->", "").split()[0] for line in lines]
    assert shown == [f"v{i}" for i in range(first, last + 1)]
    assert [line.strip() for line in lines if "-->" in line] == [f"--> v{fault} = num.f(lost)"]
    assert error.source == Source("m.py", 7)
    assert error.message.startswith(
        f"after mine, at stage FUNCTIONAL: call 'v{fault}' (num.f) uses"
    )


def test_a_fault_of_the_outputs_shows_the_last_calls():
    error = wrong(
        "after acquisition, at stage ACQUIRED: the program returns 'z'", program(NEG, outputs=Z)
    )
    assert error.hint.strip() == "y = num.neg(x)"

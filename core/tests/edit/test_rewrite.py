"""The rewriter: edited calls, untouched calls, and inherited names, tags and sources."""

from __future__ import annotations

import pytest
from tj_core.contract.expansion import Expanded, bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import Replacement, rewrite
from tj_core.errors import RuleMissingError, TraceError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import DType
from tj_core.ir.symbol import Constant, Context
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import Body, BoundSymbol, Trace
from tj_core.source import Source
from tj_core.testing.numeric import call, expansions, vector
from tj_core.text.language import EMPTY_LANGUAGE
from tj_core.text.metadata import meta_text
from tj_core.verify.verifier import verify

X, Y = vector("x", 2), vector("y", 2)
F32 = Constant("_f32", DType("float32", 32, "float"), named=False)
TAGS = TagRegistry()
expand = RuleTable("expand") | expansions


@expand.register("num.cast")
def _cast(given):
    return Expanded(given.args[0].replace(name="_0", dtype=given.args[1].value))


@expand.register("num.detach")
def _detach(given):
    """An operation that returns its argument with other metadata."""
    a0 = given.args[0].replace(name="a0")
    return Expanded(a0.replace(name="_0", requires_grad=False), body=Body((a0,), (), a0))


def made(name, *args, out="y", **more):
    bare = call(name, *args, **more)
    return bind_outputs(bare, expand.require(bare).value(bare), lambda i: f"{out}{i or ''}")


def chain(*names, inputs=(X,)):
    """Calls of ``names`` in order, each with at most three arguments."""
    calls, last = [], inputs[0]
    arity = {"axpy": 3, "add": 2, "mul": 2}
    for i, name in enumerate(names):
        calls.append(
            made(name, *([last] * arity.get(name, 1)), out=f"v{i}", source=Source("f.py", i))
        )
        last = calls[-1].flat_outs[0]
    trace = Trace(inputs, tuple(calls), last, language=EMPTY_LANGUAGE)
    verify(trace, level=2, tags=TAGS, expand=expand)
    return trace


def apply(trace, rule, *keys, check=True, **more):
    table = RuleTable("rules")
    table.register(*keys)(rule)
    after = rewrite(trace, table.stamped("mine", 0), expand=expand, tags=TAGS, name="pass", **more)
    if check:
        verify(after, level=2, tags=TAGS, expand=expand)
    return after


def to(symbol, **more):
    """A rule that replaces the operation and keeps the arguments."""
    return lambda c, edit: Replacement((edit.call(symbol, *c.args, outputs=(c.outputs.name,)),))


def test_untouched_calls_are_the_same_objects():
    trace = chain("neg", "noise", "axpy", "neg")
    after = apply(trace, to("num.neg"), "num.noise")
    assert [a is b for a, b in zip(trace.calls, after.calls, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    assert after.calls[1].symbol.name == "neg"
    assert after.outputs is trace.outputs


def test_rules_that_never_fire_leave_the_same_trace():
    trace = chain("neg", "axpy")
    assert apply(trace, lambda c, edit: None, "*") is trace
    assert apply(trace, lambda c, edit: Replacement((c,)), "*") is trace
    assert apply(trace, to("num.neg"), "num.noise") is trace


def test_source_parent_and_provenance():
    after = apply(chain("neg", "noise"), to("num.neg"), "num.noise")
    assert after.calls[1].source == Source("f.py", 1)
    assert after.calls[1].parent == "v1"
    (record,) = after.history
    (change,) = record.changes
    assert (record.name, record.plugin) == ("pass", "core")
    assert (change.call, change.plugin, change.rule) == ("v1", "mine", "num.noise")
    assert "test_rewrite.py:" in change.origin


def test_the_parent_of_a_backward_call_stays():
    trace = chain("neg")
    trace = trace.replace(calls=(trace.calls[0].replace(parent="w"),))
    assert apply(trace, to("num.noise"), "num.neg").calls[0].parent == "w"


def test_new_calls_have_the_context_of_the_old():
    trace = chain("neg")
    context = Context.of(grad=False)
    trace = trace.replace(calls=(trace.calls[0].replace(context=context),))
    assert apply(trace, to("num.noise"), "num.neg").calls[0].context == context


def test_a_call_may_be_kept_next_to_new_ones():
    def rule(c, edit):
        return Replacement((edit.call("num.noise", X), c))

    trace = chain("neg", "neg")
    after = apply(trace, rule, "num.neg")
    assert [c.outputs.name for c in after.calls] == ["v0_1", "v0", "v1_1", "v1"]
    assert after.calls[1] is trace.calls[0]


def test_fresh_names_are_free():
    trace = chain("neg", "neg")
    names = []
    apply(trace, lambda c, edit: names.append([edit.fresh("v0"), edit.fresh("n")]), "num.neg")
    assert names == [["v0_1", "n"], ["v0_2", "n_1"]]


def test_a_rule_sees_what_its_call_stands_in_as_it_was():
    trace, seen = chain("axpy", "neg"), []

    def rule(c, edit):
        seen.append([inner.symbol.name for inner in edit.of(c).trace.calls])
        return to("num.same")(c, edit) if c.symbol.name == "neg" else None

    apply(trace, rule, "num.neg", "num.add")
    assert seen == [["mul", "add"], ["axpy", "neg"]], "a body, then the program"


def test_values_that_go_away_are_replaced_everywhere():
    trace = chain("same", "neg", "same")
    trace = trace.replace(outputs=[trace.outputs, {"k": trace.calls[0].outputs}])
    after = apply(trace, lambda c, edit: Replacement((), {c.outputs.name: c.args[0]}), "num.same")
    assert after.calls == (trace.calls[1].replace(args=(X,)),)
    assert after.outputs == [vector("v1", 2), {"k": X}]


def test_values_may_become_constants():
    user = call("fill_", vector("n", 2), 1.0, vector("n", 2), X, outputs=Y,
                effects=Effects(aliases=(Alias(0, "arg", 2),)))  # fmt: skip
    table = RuleTable("expand")
    last = lambda c: (Alias(0, "arg", len(c.flat_args) - 1),)  # noqa: E731
    table.set("num.fill_", lambda c: Expanded(vector("_0", 2), Effects(aliases=last(c))))
    rules = RuleTable("rules")
    rules.set("num.noise", lambda c, edit: Replacement((), {"n": 3.0}))
    trace = Trace(
        (X,), (made("noise", X, out="n"), user), [Y, vector("n", 2)], language=EMPTY_LANGUAGE
    )
    after = rewrite(trace, rules, expand=table, tags=TAGS, name="pass")
    assert after.calls[0].args == (3.0, 1.0, 3.0, X)
    assert after.calls[0].effects.aliases == (Alias(0, "arg", 0),)
    assert after.outputs == [Y, 3.0]


def test_an_output_left_undefined_is_an_error():
    with pytest.raises(
        TraceError, match=r"a rule for num.neg leaves output 'v0' undefined"
    ) as error:
        apply(chain("neg"), lambda c, edit: Replacement(()), "num.neg")
    assert error.value.source == Source("f.py", 0)


def test_new_calls_need_an_expansion():
    with pytest.raises(RuleMissingError, match=r"no rule for 'num.unheard' in table 'expand'"):
        apply(chain("neg"), to("num.unheard"), "num.neg")


# ------------------------------------------------------------------------------- bodies


def test_rules_apply_in_bodies_and_mark_the_call():
    trace = chain("neg", "axpy", "noise")
    after = apply(trace, to("num.add"), "num.mul")
    neg, edited, noise = after.calls
    assert (neg, noise) == (trace.calls[0], trace.calls[2])
    assert neg is trace.calls[0]
    assert noise is trace.calls[2]
    assert edited.symbol.qualname == "num.axpy.rewritten"
    assert edited.outputs is trace.calls[1].outputs
    assert [c.symbol.name for c in edited.body.calls] == ["add", "add"]
    assert after.history[-1].changes[0].call == "v1._0"
    assert apply(after, to("num.mul"), "num.add").calls[1].symbol.qualname == "num.axpy.rewritten"


def test_a_rule_that_took_the_call_is_not_asked_about_its_body():
    asked = []

    def rule(c, edit):
        asked.append(c.symbol.name)
        return edit.inline() if c.symbol.name == "axpy" else None

    apply(chain("axpy"), rule, "*")
    assert asked == ["axpy"]


def test_bodies_can_be_left_alone():
    trace = chain("axpy")
    assert apply(trace, to("num.add"), "num.mul", into_bodies=False) is trace


@pytest.mark.parametrize("more", [{"executor": "mine"}, {"effects": Effects(mutates=(0,))}])
def test_bodies_of_claimed_and_of_mutating_calls_are_left_alone(more):
    trace = chain("axpy")
    trace = trace.replace(calls=(trace.calls[0].replace(**more),))
    assert apply(trace, to("num.add"), "num.mul", check=False) is trace


def test_a_shared_body_is_asked_once_and_edited_once():
    first = made("axpy", X, X, X, out="a")
    second = first.map_proxies(lambda p: vector("b", 2) if p.name == "a" else p)
    asked = []

    def rule(c, edit):
        asked.append(c)
        return to("num.add")(c, edit)

    after = apply(
        Trace(
            (X,), (first, second), [Y.replace(name="a"), vector("b", 2)], language=EMPTY_LANGUAGE
        ),
        rule,
        "num.mul",
    )
    assert len(asked) == 1
    assert after.calls[0].body is after.calls[1].body
    assert [c.call for c in after.history[0].changes] == ["a._0", "b._0"]


def test_under_another_context_a_body_is_another():
    first = made("axpy", X, X, X, out="a", context=Context.of(grad=True))
    second = first.replace(context=Context.of(grad=False), outputs=vector("b", 2))
    asked = []

    def rule(c, edit):
        asked.append(c.context)
        return to("num.add")(c, edit) if c.context.get("grad") else None

    after = apply(
        Trace((X,), (first, second), [vector("a", 2), vector("b", 2)], language=EMPTY_LANGUAGE),
        rule,
        "num.mul",
    )
    assert asked == [Context.of(grad=True), Context.of(grad=False)]
    assert after.calls[1] is second
    assert {c.context for c in after.calls[0].body.calls} == {Context()}  # relative, as before


def test_new_calls_in_a_body_keep_what_differs_from_the_call_around():
    a0, v = vector("a0", 2), vector("_0", 2)
    inner = call("neg", a0, outputs=v, context=Context.of(mode=2))
    outer = call(
        "f", X, outputs=Y, body=Body((a0,), (inner,), v), context=Context.of(grad=0, mode=1)
    )
    trace = Trace((X,), (outer,), Y, language=EMPTY_LANGUAGE)
    edited = apply(trace, to("num.noise"), "num.neg").calls[0]
    assert edited.body.calls[0].context == Context.of(mode=2)
    assert edited.body.calls[0].parent is None


def test_effects_of_the_new_body_are_the_calls():
    edited = apply(
        chain("axpy"),
        lambda c, e: Replacement((e.call("num.noise", c.args[0], outputs=("_0",)),)),
        "num.mul",
    )
    assert edited.calls[0].effects.ordered == ("random:num",)
    assert not edited.calls[0].effects.removable


def test_inlining_inside_a_body():
    a0, v = vector("a0", 2), vector("_0", 2)
    inner = made("axpy", a0, a0, a0, out="_0")
    trace = Trace(
        (X,), (call("f", X, outputs=Y, body=Body((a0,), (inner,), v)),), Y, language=EMPTY_LANGUAGE
    )
    edited = apply(trace, lambda c, edit: edit.inline(), "num.axpy").calls[0]
    assert [(c.symbol.name, c.outputs.name) for c in edited.body.calls] == [
        ("mul", "_0"),
        ("add", "_1"),
    ]
    assert edited.body.outputs.name == "_1"


def test_outputs_that_a_body_no_longer_computes():
    """Outputs become the argument, another output, and a constant."""
    a0 = vector("a0", 2)
    v = [vector(f"_{i}", 2) for i in range(3)]
    calls = (
        call("same", a0, outputs=v[0]),
        call("neg", a0, outputs=v[1]),
        call("reciprocal", a0, outputs=v[2]),
    )
    outs = tuple(vector(n, 2) for n in "pqrs")
    outer = call(
        "f", X, outputs=outs, body=Body((a0,), calls, (v[0], v[1], v[1], v[2])),
        effects=Effects(aliases=(Alias(3, "internal"),)),
    )  # fmt: skip
    user = made("add", outs[0], outs[2], out="u")
    trace = Trace((X,), (outer, user), [*outs, user.outputs], language=EMPTY_LANGUAGE)

    def rule(c, edit):
        return Replacement((), {c.outputs.name: a0 if c.symbol.name == "same" else 3.0})

    after = apply(trace, rule, "num.same", "num.reciprocal")
    edited = after.calls[0]
    assert edited.outputs == (*outs[:3], 3.0)
    assert [c.symbol.name for c in edited.body.calls] == ["neg"]
    assert edited.effects.aliases == (
        Alias(0, "arg", 0, identical=True),
        Alias(2, "out", 1, identical=True),
    )
    assert after.calls[1] is user
    assert after.outputs == [*outs[:3], 3.0, user.outputs]


def test_outputs_keep_what_bodies_do_not_say():
    """Values in bodies have no ``requires_grad``; outputs of calls do."""
    g = X.replace(requires_grad=True)
    axpy = made("axpy", X, X, X)
    body = Body((vector("a0", 2, requires_grad=True),), axpy.body.calls, axpy.body.outputs)
    body = body.__class__(body.inputs, tuple(
        c.map_proxies(lambda p: body.inputs[0] if p.name == "a0" else p) for c in body.calls
    ), body.outputs)  # fmt: skip
    out = vector("y", 2, requires_grad=True)
    trace = Trace(
        (g,), (call("axpy", g, g, g, outputs=out, body=body),), out, language=EMPTY_LANGUAGE
    )
    edited = apply(trace, to("num.add"), "num.mul", check=False).calls[0]
    assert edited.outputs is out


# ------------------------------------------------------------------------------- re-expansion


def cast(c, edit):
    """A rule that changes the data type of an output and keeps its name."""
    inner = edit.call("num.noise", *c.args)
    return Replacement(
        (inner, edit.call("num.cast", inner.outputs, F32, outputs=(c.outputs.name,)))
    )


def dtypes(trace):
    return {p.name: str(p.dtype) for c in trace.calls for p in c.flat_outs}


def test_what_follows_expands_again():
    trace = chain("neg", "axpy", "neg", "same")
    after = apply(trace, lambda c, e: cast(c, e) if c.outputs.name == "v0" else None, "num.neg")
    assert dtypes(after) == {"v0_1": "f64", "v0": "f32", "v1": "f32", "v2": "f32", "v3": "f32"}
    axpy = after.calls[2]
    assert axpy.source == trace.calls[1].source
    assert axpy.symbol == trace.calls[1].symbol
    assert {meta_text(p) for c in axpy.body.calls for p in c.flat_outs} == {"cpu f32[2]"}
    assert after.outputs == after.calls[-1].outputs
    assert axpy.parent is None


def test_a_body_whose_values_change_changes_the_calls_outputs():
    def to_f32(c, edit):
        narrow = [edit.call("num.cast", a, F32) for a in c.args]
        product = edit.call("num.mul", *(n.outputs for n in narrow), outputs=(c.outputs.name,))
        return Replacement((*narrow, product))

    a0, v0, v1 = vector("a0", 2), vector("_0", 2), vector("_1", 2)
    body = Body((a0,), (call("mul", a0, a0, outputs=v0), call("neg", v0, outputs=v1)), v1)
    calls = call("f", X, outputs=Y, body=body), made("add", Y, Y, out="z")
    after = apply(Trace((X,), calls, vector("z", 2), language=EMPTY_LANGUAGE), to_f32, "num.mul")
    assert [str(c.flat_outs[0].dtype) for c in after.calls[0].body.calls] == ["f32"] * 4
    assert str(after.calls[0].outputs.dtype) == "f32"
    assert str(after.outputs.dtype) == "f32"


def test_an_edited_call_expands_again_through_its_body():
    trace = apply(chain("neg", "axpy", "neg"), to("num.add"), "num.mul")
    after = apply(trace, lambda c, e: cast(c, e) if c.outputs.name == "v0" else None, "num.neg")
    edited = after.calls[2]
    assert edited.symbol.edited
    assert dtypes(after)["v1"] == dtypes(after)["v2"] == "f32"
    assert [c.symbol.name for c in edited.body.calls] == ["add", "add"]
    assert {meta_text(p) for c in edited.body.calls for p in c.flat_outs} == {"cpu f32[2]"}
    assert meta_text(edited.body.inputs[0]) == "cpu f32[2]"


def test_an_unknown_call_cannot_expand_again():
    trace = chain("neg")
    trace = trace.replace(
        calls=(*trace.calls, call("unheard", trace.outputs, outputs=Y)), outputs=Y
    )
    with pytest.raises(RuleMissingError, match=r"no rule for 'num.unheard'"):
        apply(trace, cast, "num.neg")


def test_another_structure_of_outputs_is_an_error():
    @expand.register("num.fickle")
    def _fickle(given):
        return Expanded((vector("_0", 2),) * (2 if given.args[0].dtype == F32.value else 1))

    trace = Trace(
        (X,), (made("neg", X, out="a"), made("fickle", vector("a", 2))), (), language=EMPTY_LANGUAGE
    )
    with pytest.raises(TraceError, match=r"num.fickle has other outputs now"):
        apply(trace, cast, "num.neg")


def test_rebound_values_follow():
    @expand.register("num.shrink_")
    def _shrink(given):
        (p,) = given.flat_args
        return Expanded(None, Effects(rebinds=((0, p.replace(name="_", shape=(1,))),)))

    first = made("neg", X, out="a")
    shrink = made("shrink_", first.outputs)
    small = shrink.effects.rebinds[0][1]
    trace = Trace(
        (X,),
        (first, shrink, made("neg", small, out="b")),
        [small, vector("b", 1)],
        language=EMPTY_LANGUAGE,
    )
    verify(trace, level=2, tags=TAGS, expand=expand)
    after = apply(trace, lambda c, e: cast(c, e) if c.outputs.name == "a" else None, "num.neg")
    assert meta_text(after.calls[-1].args[0]) == "cpu f32[1]"
    assert dtypes(after)["b"] == "f32"
    assert meta_text(after.outputs[0]) == "cpu f32[1]"


def test_a_mutating_call_whose_arguments_coincide_expands_again():
    seen = []

    @expand.register("num.into_")
    def _into(given):
        seen.append([p.name for p in given.flat_args])
        return Expanded(None, Effects(mutates=(0,)))

    first, second = made("neg", X, out="a"), made("same", X, out="b")
    trace = Trace(
        (X,),
        (first, second, made("into_", first.outputs, second.outputs)),
        (),
        language=EMPTY_LANGUAGE,
    )
    seen.clear()
    apply(trace, lambda c, e: Replacement((), {"b": first.outputs}), "num.same", check=False)
    assert seen == [["a", "a"]]


def test_a_call_that_cannot_be_inlined_says_so():
    g = X.replace(requires_grad=True)
    trace = Trace((g,), (made("detach", g),), Y, language=EMPTY_LANGUAGE)
    answers = []
    apply(trace, lambda c, edit: answers.append(edit.can_inline()), "num.detach")
    assert answers == [False]
    with pytest.raises(TraceError, match="cannot be replaced by its body"):
        apply(trace, lambda c, edit: edit.inline(), "num.detach")


def test_editor_calls_take_keywords_and_names():
    @expand.register("num.pair")
    def _pair(given):
        return Expanded((vector("_0", 2), vector("_1", 2)))

    calls: list[BoundSymbol] = []

    def rule(c, edit):
        calls.append(
            edit.call("num.pair", *c.args, outputs=("p",), alpha=2, context=Context.of(m=1))
        )

    apply(chain("neg"), rule, "num.neg")
    (pair,) = calls
    assert pair.kwargs == (("alpha", 2),)
    assert [p.name for p in pair.flat_outs] == ["p", "v0_1"]
    assert pair.context == Context.of(m=1)

"""Tags: sets, the registry, merging, and propagation by all edits of traces."""

from __future__ import annotations

import pytest
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.expansion import Expanded, bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import Replacement, rewrite
from tj_core.errors import ParseError, PluginConflictError, TagError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.names import Namer
from tj_core.ir.tags import BUILTIN_TAGS, NO_TAGS, Tag, TagRegistry, TagSet
from tj_core.ir.trace import Body, Trace
from tj_core.passes.claim import claim
from tj_core.passes.dce import dce
from tj_core.source import Source
from tj_core.testing.numeric import call, expansions, vector
from tj_core.text.language import EMPTY_LANGUAGE
from tj_core.text.metadata import parse_tags, tags_text
from tj_core.verify.verifier import verify

OWN = (
    Tag("ALL", through_views=True, to_backward=True),
    Tag("STAY", into_body=False, to_replacement=False),
    Tag("BODY", to_replacement=False),
    Tag("PLACE", into_body=False),
    Tag("HARD_A", group="g"),
    Tag("HARD_B", group="g"),
    Tag("SOFT_A", group="g", strength="soft"),
    Tag("SOFT_B", group="g", strength="soft"),
    Tag("VALUED"),
)
TAGS = TagRegistry(("mine", tag) for tag in OWN)


# ------------------------------------------------------------------------------- sets


def test_a_set_is_sorted_hashable_and_equal_by_content():
    a, b = TagSet(["SAVE", "ALL"]), TagSet({"ALL": None, "SAVE": None})
    assert a == b
    assert hash(a) == hash(b)
    assert list(a) == ["ALL", "SAVE"]
    assert str(a.add("VALUED", 3)) == "ALL, SAVE, VALUED=3"
    assert a.add("VALUED", 3).without("SAVE", "NONE") == TagSet({"ALL": None, "VALUED": 3})
    assert a.add("VALUED", 3)["VALUED"] == 3
    assert a != TagSet(["SAVE"])
    assert not NO_TAGS


def test_a_string_is_not_a_set_of_tags():
    with pytest.raises(TypeError, match="not from the string 'SAVE'"):
        TagSet("SAVE")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1,), object()])
def test_values_are_plain(value):
    with pytest.raises(TagError, match="'VALUED' cannot have the value"):
        TagSet({"VALUED": value})


@pytest.mark.parametrize(
    "value",
    [1, -1, 1.5, True, "", "a, SAVE, b", 'say "hi"', "it's", "}{ # \n", "\\'", "=", "\\"],
)
def test_valued_tags_read_back(value):
    tags = TagSet({"SAVE": None, "VALUED": value, "A": value, "Z": None})
    found = parse_tags(tags_text(tags))
    assert found == tags
    assert [type(v) for v in found.values()] == [type(v) for v in tags.values()]


@pytest.mark.parametrize("text", ["{SAVE ALL}", "{A='}", "{=3}", "{A=3, 'x'}"])
def test_not_tags(text):
    with pytest.raises(ParseError, match="are not tags"):
        parse_tags(text)


# ------------------------------------------------------------------------------- registry


def test_one_registry_with_the_built_in_ones():
    names = {tag.name for tag in TAGS}
    assert names == {t.name for t in BUILTIN_TAGS} | {t.name for t in OWN}
    assert TAGS["SAVE"].group == TAGS["RECOMPUTE"].group != ""


def test_an_unknown_tag_names_the_one_that_was_meant():
    source = Source("model.py", 7, "tj.tag(x, 'SAV')")
    with pytest.raises(TagError, match=r"unknown tag 'SAV'\. Did you mean 'SAVE'\?") as error:
        TAGS.require("SAV", source=source)
    assert "model.py:7" in str(error.value)
    assert "RECOMPUTE" in error.value.hint


def test_a_tag_sits_only_where_it_may():
    with pytest.raises(TagError, match="'STATIC_MEMORY_LOCATION' cannot be put on a call"):
        TAGS.require("STATIC_MEMORY_LOCATION", "call")
    assert TAGS.require("STATIC_MEMORY_LOCATION", "proxy").through_views


def test_two_plugins_cannot_register_one_tag():
    with pytest.raises(PluginConflictError, match="'SAVE' is registered by core and by mine"):
        TagRegistry([("mine", Tag("SAVE"))])
    with pytest.raises(PluginConflictError, match="'T' is registered by a and by b"):
        TagRegistry([("a", Tag("T")), ("b", Tag("T"))])


def test_a_tag_is_an_identifier():
    with pytest.raises(TagError, match="'not-one' of plugin 'mine' is no identifier"):
        TagRegistry([("mine", Tag("not-one"))])


# ------------------------------------------------------------------------------- merging


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ([], ["ALL"], ["ALL"]),
        (["ALL"], [], ["ALL"]),
        (["ALL"], ["SAVE"], ["ALL", "SAVE"]),
        (["HARD_A"], ["HARD_A"], ["HARD_A"]),
        (["HARD_A"], ["SOFT_A"], ["HARD_A"]),
        (["SOFT_A"], ["HARD_A"], ["HARD_A"]),
        (["SOFT_A"], ["SOFT_B"], ["SOFT_A"]),
        (["SOFT_B"], ["SOFT_A"], ["SOFT_B"]),
        ({"VALUED": 1}, {"VALUED": 1}, {"VALUED": 1}),
        ({"VALUED": 1, "HARD_A": None}, {"SOFT_B": 2}, {"VALUED": 1, "HARD_A": None}),
        ({"SOFT_B": 2}, {"HARD_A": 3}, {"HARD_A": 3}),
    ],
)
def test_merge(first, second, merged):
    assert TAGS.merge(TagSet(first), TagSet(second)) == TagSet(merged)


def test_two_hard_tags_of_one_group_conflict():
    source = Source("model.py", 7)
    with pytest.raises(TagError, match="'HARD_A' and 'HARD_B' exclude each other") as error:
        TAGS.merge(TagSet(["HARD_A"]), TagSet(["HARD_B"]), source)
    assert error.value.source == source


def test_one_tag_has_one_value():
    with pytest.raises(TagError, match="'VALUED' has two values, 1 and 2"):
        TAGS.merge(TagSet({"VALUED": 1}), TagSet({"VALUED": 2}))


def test_merging_nothing_new_is_no_new_set():
    tags = TagSet(["ALL"])
    assert TAGS.merge(tags, NO_TAGS) is tags
    assert TAGS.merge(tags, TagSet(["ALL"])) is tags


def test_traveling_keeps_what_the_policy_lets_through():
    tags = TagSet({"ALL": None, "STAY": None, "BODY": None, "PLACE": None, "VALUED": 7})
    assert TAGS.propagated(tags, "into_body") == TagSet({"ALL": None, "BODY": None, "VALUED": 7})
    assert TAGS.propagated(tags, "to_replacement") == TagSet(
        {"ALL": None, "PLACE": None, "VALUED": 7}
    )
    assert TAGS.propagated(tags, "through_views") == TagSet(["ALL"])
    assert TAGS.propagated(tags, "to_backward") == TagSet(["ALL"])


# ------------------------------------------------------------------------------- travel


def made(name, *args, out="y", tags=(), value=(), **more):
    """A call of the dialect, expanded, with tags on the call and on its first output."""
    plain = call(name, *args, tags=TagSet(tags), **more)
    bound = bind_outputs(plain, expansions.require(plain).value(plain), lambda i: f"{out}{i or ''}")
    first = bound.flat_outs[0]
    return bound.map_proxies(lambda p: p.replace(tags=TagSet(value)) if p is first else p)


X, Y = vector("x", 2), vector("y", 2)
EVERY = ("ALL", "STAY", "BODY", "PLACE")


def program(*calls, inputs=(X,), outputs=None):
    trace = Trace(
        inputs, calls, calls[-1].outputs if outputs is None else outputs, language=EMPTY_LANGUAGE
    )
    verify(trace, level=2, tags=TAGS, expand=expansions)
    return trace


def rewritten(trace, rule, *keys, **more):
    rules = RuleTable("rules")
    rules.register(*keys)(rule)
    after = rewrite(trace, rules, expand=expansions, tags=TAGS, name="pass", **more)
    verify(after, level=2, tags=TAGS, expand=expansions)
    return after


def claimed(trace, *symbols, fallback=("num.*",)):
    def executor(name, keys, implementation, **more):
        claims = RuleTable("claim")
        for key in keys:
            claims.set(key, Claim(implementation))
        return Executor(name, claims, **more)

    executors = [
        executor("mine", symbols, lambda *args: args),
        executor("python", fallback, None, fallback=True),
    ]
    after = claim(trace, executors, TAGS).trace
    verify(after, level=2, tags=TAGS, expand=expansions)
    return after


def test_tags_survive_dce():
    kept = made("neg", X, tags=EVERY, value=EVERY)
    dead = made("neg", X, out="z")
    after = dce(program(kept, dead, outputs=kept.outputs))
    assert after.calls == (kept,)
    assert after.calls[0] is kept


def test_tags_into_the_body_when_it_takes_the_place():
    axpy = made("axpy", X, X, X, tags=EVERY, value=EVERY)
    after = rewritten(program(axpy), lambda c, edit: edit.inline(), "num.axpy", into_bodies=False)
    mul, add = after.calls
    assert mul.tags == add.tags == TagSet(["ALL", "BODY"])
    assert add.outputs.tags == TagSet(EVERY)  # it is the same value
    assert mul.outputs.tags == NO_TAGS
    assert after.outputs is add.outputs


def tagged_body(axpy):
    """`axpy` with a tag on the product in its body, and on the product's call."""
    body = axpy.body
    mul, add = body.calls
    product = mul.outputs.replace(tags=TagSet(["SAVE"]))
    mul = mul.replace(outputs=product, tags=TagSet({"VALUED": 3}))
    add = add.replace(args=(product, *add.args[1:]))
    return axpy.replace(body=Body(body.inputs, (mul, add), body.outputs))


def test_tags_in_a_body_survive_its_inlining():
    axpy = tagged_body(made("axpy", X, X, X, tags=["ALL"]))
    after = rewritten(program(axpy), lambda c, edit: edit.inline(), "num.axpy", into_bodies=False)
    mul, add = after.calls
    assert mul.tags == TagSet({"ALL": None, "VALUED": 3})
    assert mul.outputs.tags == add.args[0].tags == TagSet(["SAVE"])


def test_tags_to_a_replacement():
    neg = made("neg", X, tags=EVERY, value=EVERY)
    after = rewritten(
        program(neg),
        lambda c, edit: Replacement(
            ((first := edit.call("num.noise", *c.args)),
             edit.call("num.reciprocal", first.outputs, outputs=(c.outputs.name,)))
        ),
        "num.neg",
    )  # fmt: skip
    first, second = after.calls
    assert first.tags == first.outputs.tags == NO_TAGS
    assert second.tags == second.outputs.tags == TagSet(["ALL", "PLACE"])
    assert after.outputs is second.outputs


def test_tags_to_a_replacement_under_another_name():
    neg = made("neg", X, tags=["ALL"], value=["ALL"])
    user = made("neg", neg.outputs, out="z", tags=["STAY"])

    def rule(c, edit):
        if c.outputs.name != "y":
            return None
        new = edit.call("num.noise", *c.args)
        return Replacement((new,), {"y": new.outputs})

    noise, last = rewritten(program(neg, user), rule, "num.neg").calls
    assert noise.tags == noise.outputs.tags == last.args[0].tags == TagSet(["ALL"])
    assert last.tags == TagSet(["STAY"])
    assert last.outputs is user.outputs


def test_an_elder_value_inherits_the_tags_of_what_it_replaces():
    first = made("neg", X, out="a", value=["HARD_A"])
    again = made("neg", X, out="b", value=["SAVE", "SOFT_B"])
    third = made("add", first.outputs, again.outputs, out="c")
    seen = {}

    def cse(c, edit):
        if (old := seen.setdefault(c.args, c)) is not c:
            return Replacement((), {c.outputs.name: old.outputs})
        return None

    one, add = rewritten(program(first, again, third), cse, "num.neg").calls
    assert one.outputs.tags == TagSet(["HARD_A", "SAVE"])
    assert add.args == (one.outputs, one.outputs)


def test_an_input_inherits_too():
    same = made("same", X, value=["SAVE"])
    after = rewritten(program(same), lambda c, edit: Replacement((), {"y": c.args[0]}), "num.same")
    assert after.inputs[0].tags == after.outputs.tags == TagSet(["SAVE"])
    assert after.calls == ()


def test_conflicting_tags_of_merged_values_are_an_error():
    first = made("neg", X, out="a", value=["HARD_A"])
    again = made("neg", X, out="b", value=["HARD_B"])
    trace = program(first, again)
    with pytest.raises(TagError, match="exclude each other"):
        rewritten(
            trace,
            lambda c, edit: Replacement((), {"b": first.outputs}) if c is again else None,
            "num.neg",
        )


def test_tags_survive_re_expansion():
    neg = made("neg", X, out="a")
    axpy = tagged_body(made("axpy", neg.outputs, X, X, out="b", tags=EVERY, value=EVERY))

    def wider(c, edit):
        """Replace both arguments by values that need gradients: later metadata changes."""
        new = vector("w", 2, requires_grad=True)
        return Replacement((call("neg", *c.args, outputs=new),), {"a": new})

    rules = RuleTable("rules")
    rules.set("num.neg", wider)
    after = rewrite(program(neg, axpy), rules, expand=expansions, tags=TAGS, name="pass")
    again = after.calls[1]
    assert again.outputs.requires_grad
    assert again.tags == again.outputs.tags == TagSet(EVERY)
    assert again.body.inputs[0].requires_grad
    assert [c.tags for c in again.body.calls] == [TagSet({"VALUED": 3}), NO_TAGS]
    assert again.body.calls[0].outputs.tags == again.body.calls[1].args[0].tags == TagSet(["SAVE"])


def test_tags_survive_claiming():
    neg = tagged_body(made("axpy", X, X, X, tags=EVERY, value=EVERY))
    (taken,) = claimed(program(neg), "num.axpy").calls
    assert taken.symbol.qualname == "mine.num.axpy"
    assert taken.tags == taken.outputs.tags == TagSet(EVERY)
    inner = taken.body.calls[0]
    assert inner.tags == inner.outputs.tags == TagSet(EVERY)
    assert inner.body == neg.body


def test_tags_survive_claiming_of_a_part():
    axpy = tagged_body(made("axpy", X, X, X, tags=EVERY, value=EVERY))
    mul, add = claimed(program(axpy), "num.mul").calls
    assert mul.symbol.qualname == "mine.num.mul"
    assert mul.tags == mul.body.calls[0].tags == TagSet({"ALL": None, "BODY": None, "VALUED": 3})
    assert mul.outputs.tags == add.args[0].tags == TagSet(["SAVE"])
    assert add.tags == TagSet(["ALL", "BODY"])
    assert add.outputs.tags == TagSet(EVERY)


def test_tags_of_a_value_that_claiming_passes_through():
    x = X.replace(name="a0")
    product = vector("_0", 2)
    both = call(
        "both", X, outputs=(vector("p", 2), vector("q", 2, tags=TagSet(["SAVE"]))),
        body=Body((x,), (call("mul", x, x, outputs=product),), (product, x)),
    )  # fmt: skip
    user = made("neg", both.outputs[1], out="r")
    trace = Trace((X,), (both, user), (both.outputs[0], user.outputs), language=EMPTY_LANGUAGE)
    verify(trace, tags=TAGS)
    after = claimed(trace, "num.mul")
    assert after.inputs[0].tags == TagSet(["SAVE"])
    assert [c.args for c in after.calls] == [(after.inputs[0],) * 2, (after.inputs[0],)]


def test_tags_in_bodies_survive_edits_of_the_body():
    axpy = tagged_body(made("axpy", X, X, X, tags=["ALL", "STAY"], value=EVERY))
    seen = []

    def rule(c, edit):
        seen.append(c.tags)
        return Replacement((edit.call("num.add", *c.args, outputs=(c.outputs.name,)),))

    (edited,) = rewritten(program(axpy), rule, "num.mul").calls
    assert edited.symbol.qualname == "num.axpy.rewritten"
    assert edited.tags == TagSet(["ALL", "STAY"])
    assert edited.outputs is axpy.outputs
    assert seen == [TagSet({"ALL": None, "VALUED": 3})]  # as it would be in place
    first, second = edited.body.calls
    assert first.tags == TagSet({"VALUED": 3})
    assert first.outputs.tags == second.args[0].tags == TagSet(["SAVE"])


def test_tags_through_views():
    base = vector("x", 2, tags=TagSet(["STATIC_MEMORY_LOCATION", "SAVE"]))

    def to_view(c, edit):
        return Replacement((edit.call("num.same", *c.args, outputs=("y",)),))

    after = rewritten(program(made("neg", base), inputs=(base,)), to_view, "num.neg")
    assert after.outputs.tags == TagSet(["STATIC_MEMORY_LOCATION"])


def test_tags_through_views_in_an_inlined_body():
    base = vector("x", 2, tags=TagSet(["STATIC_MEMORY_LOCATION"]))
    a0, v, w = vector("a0", 2), vector("_0", 2), vector("_1", 2)
    alias = Effects(aliases=(Alias(0, "arg", 0),))
    body = Body((a0,), (call("same", a0, outputs=v, effects=alias), call("neg", v, outputs=w)), w)
    both = call("both", base, outputs=vector("y", 2), body=body)
    trace = Trace((base,), (both,), both.outputs, language=EMPTY_LANGUAGE)
    view, neg = rewritten(trace, lambda c, edit: edit.inline(), "num.both").calls
    assert view.outputs.tags == neg.args[0].tags == TagSet(["STATIC_MEMORY_LOCATION"])
    assert neg.outputs.tags == NO_TAGS


def test_rebound_values_keep_their_tags():
    x = vector("x", 2, tags=TagSet(["SAVE"]))
    after = vector("_", 1)
    bound = bind_outputs(call("shrink_", x), Expanded(None, Effects(rebinds=((0, after),))), str)
    assert bound.effects.rebinds == ((0, vector("x", 1, tags=TagSet(["SAVE"]))),)


def test_decomposition_does_not_apply_the_policy_of_replacement():
    namer = Namer({"x", "y"})
    assert namer("y") == "y_1"
    axpy = made("axpy", X, X, X, tags=["PLACE"])
    after = rewritten(program(axpy), lambda c, edit: edit.inline(), "num.axpy", into_bodies=False)
    assert [c.tags for c in after.calls] == [NO_TAGS, NO_TAGS]

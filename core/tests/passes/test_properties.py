"""Random programs: properties of every pass on every trace."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tj_core.contract.executors import Claim, Decline, Executor
from tj_core.contract.expansion import bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import Replacement, rewrite
from tj_core.ir.proxy import TensorProxy
from tj_core.ir.tags import TagSet
from tj_core.ir.trace import Trace
from tj_core.ir.tree import map_tree
from tj_core.passes.claim import claim
from tj_core.passes.dce import dce
from tj_core.testing.made_up import (
    ARITY,
    LANGUAGE,
    SIZE,
    TAGS,
    WORDS,
    checked,
    expand,
    made_up,
    results,
)
from tj_core.testing.numeric import call, vector

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("tj", deadline=None, max_examples=60, suppress_health_check=SLOW)
settings.load_profile("tj")


@st.composite
def programs(draw, mutation=True, length=8):
    """A made-up program of up to ``length`` calls."""
    count = draw(st.integers(0, length))
    return made_up(lambda some: draw(st.sampled_from(some)), count, mutation=mutation)


def rules(rule, *keys):
    table = RuleTable("rules")
    table.register(*keys)(rule)
    return table


def apply(trace, rule, *keys, **more):
    return rewrite(trace, rules(rule, *keys), expand=expand, tags=TAGS, name="pass", **more)


# ------------------------------------------------------------------------------- passes


@given(programs())
def test_dce_keeps_the_values(trace):
    after = checked(dce(trace))
    assert results(after) == results(trace)
    assert dce(after) is after
    assert {id(c) for c in after.calls} <= {id(c) for c in trace.calls}


@given(programs())
@pytest.mark.parametrize("rule", [lambda c, edit: None, lambda c, edit: Replacement((c,))])
def test_identity_rules_change_nothing(rule, trace):
    assert apply(trace, rule, "*") is trace


@given(programs(), st.sampled_from(["num.poly", "num.axpy", "*"]))
def test_decomposition_keeps_the_values(trace, key):
    def rule(c, edit):
        return edit.inline() if edit.can_inline() and c.body.calls else None

    before, after = None, trace
    while before is not after:
        before, after = after, checked(apply(after, rule, key, into_bodies=False))
    assert results(after) == results(trace)
    if key == "*":
        assert {c.symbol.name for c in after.calls}.isdisjoint({"poly", "axpy"})
    kept = {id(c) for c in trace.calls if c.symbol.name not in ("poly", "axpy")}
    if not any(c.symbol.name == "poly" for c in trace.calls):  # it hands an argument on
        assert kept <= {id(c) for c in after.calls}


def everything(*symbols):
    """An executor for ``symbols``, and one for all the rest."""
    mine: RuleTable[Claim] = RuleTable("claim")
    for symbol in symbols:
        mine.set(symbol, Claim(WORDS[symbol.partition(".")[2]]))
    rest: RuleTable[Claim] = RuleTable("claim")
    rest.set("num.*", Claim(None, lambda c: not c.symbol.edited or Decline("edited")))
    return [Executor("mine", mine), Executor("python", rest, fallback=True)]


SYMBOLS = st.sets(st.sampled_from([f"num.{n}" for n in ARITY]))


@given(programs(), SYMBOLS)
def test_claiming_keeps_the_values(trace, symbols):
    claimed = claim(trace, everything(*sorted(symbols)), TAGS)
    after = checked(claimed.trace)
    assert results(after, claimed.implementations) == results(trace)
    for c in after.calls:
        assert (c.symbol.namespace == "mine") == (c.executor == "mine")
        assert c.executor in ("mine", "python")
        assert c.symbol.qualname not in symbols
    text = str(after)
    assert Trace.parse(text, language=LANGUAGE) == after


def swap(c, edit):
    """The same value by a new call."""
    return Replacement((edit.call(c.symbol, *c.args[::-1], outputs=(c.outputs.name,)),))


@given(programs(), SYMBOLS)
def test_edited_bodies_keep_the_values(trace, symbols):
    after = checked(apply(trace, swap, "num.mul", "num.add"))
    edited = [c for c in trace.calls if c.symbol.name in ("mul", "add", "axpy", "poly")]
    assert (after is trace) == (not edited)
    for old, new in zip(trace.calls, after.calls, strict=True):
        composite = old.symbol.name in ("axpy", "poly")
        assert new.symbol == (old.symbol.as_edited() if composite else old.symbol)
        assert new.outputs is old.outputs or old.symbol.name in ("mul", "add")
        assert (new is old) == (old not in edited)
    claimed = claim(after, everything(*sorted(symbols)), TAGS)
    checked(claimed.trace)
    assert results(claimed.trace, claimed.implementations) == results(trace)
    assert not any(c.symbol.edited for c in claimed.trace.calls)


@given(programs(mutation=False))
def test_merging_equal_calls_keeps_the_values(trace):
    def cse():
        seen = {}

        def rule(c, edit):
            if c.symbol.name in ("noise", "none", "split"):
                return None
            old = seen.setdefault((c.symbol, c.args), c)
            if old is c:
                return None
            pairs = zip(c.flat_outs, old.flat_outs, strict=True)
            return Replacement((), {a.name: b for a, b in pairs})

        return rule

    after = checked(apply(trace, cse(), "*", into_bodies=False))
    assert results(after) == results(trace)
    assert checked(apply(after, cse(), "*", into_bodies=False)) is after
    claimed = claim(after, everything("num.mul"), TAGS)
    assert results(checked(claimed.trace), claimed.implementations) == results(trace)


@given(programs(mutation=False))
def test_passing_views_on_keeps_the_values(trace):
    """Values become other values, arguments coincide, bodies follow."""
    after = checked(
        apply(trace, lambda c, e: Replacement((), {c.outputs.name: c.args[0]}), "num.same")
    )
    assert results(after) == results(trace)
    assert not any(c.symbol.name == "same" for c in after.calls)
    text = str(after)
    assert Trace.parse(text, language=LANGUAGE) == after


@given(programs(mutation=False))
def test_changed_inputs_expand_again(trace):
    """Metadata of all later calls is derived again."""
    gradients = {p.name: p.replace(requires_grad=True) for p in trace.inputs}
    first = call("neg", trace.inputs[0], outputs=vector("n", SIZE))
    uses = tuple(
        c.map_proxies(lambda p: first.outputs if p == trace.inputs[0] else p) for c in trace.calls
    )
    outputs = {"r": [p for c in uses for p in c.flat_outs]}
    trace = trace.replace(calls=(first, *(again(c) for c in uses)), outputs=outputs)
    checked(trace)

    def rule(c, edit):
        if c is not first:
            return None
        made = edit.call("num.neg", gradients["x"], outputs=("n",))
        return Replacement((made,))

    after = apply(trace, rule, "num.neg").replace(inputs=tuple(gradients.values()))
    after = after.replace(
        calls=tuple(c.map_proxies(lambda p: gradients.get(p.name, p)) for c in after.calls)
    )
    names = [p.name for c in trace.calls for p in c.flat_outs]
    assert [p.name for c in after.calls for p in c.flat_outs] == names
    assert results(after) == results(trace)
    assert after.calls[0].outputs.requires_grad


def again(made):
    """``made``, expanded for its present arguments."""
    names = [p.name for p in made.flat_outs]
    return bind_outputs(made, expand.require(made).value(made), lambda i: names[i])


# ------------------------------------------------------------------------------- tags


@given(programs(mutation=False), st.data())
def test_tags_stay_on_the_values_that_stay(trace, data):
    new = {}

    def proxy(p):
        tags = st.sets(st.sampled_from("AB")).map(sorted).map(TagSet)
        return new.setdefault(p.name, p.replace(tags=data.draw(tags)))

    trace = trace.replace(
        inputs=tuple(map(proxy, trace.inputs)),
        calls=tuple(c.map_proxies(proxy) for c in trace.calls),
        outputs=map_tree(lambda p: proxy(p) if isinstance(p, TensorProxy) else p, trace.outputs),
    )
    checked(trace)

    def inline(c, edit):
        return edit.inline() if edit.can_inline() else None

    passes = {
        "dce": dce,
        "claim": lambda t: claim(t, everything("num.mul"), TAGS).trace,
        "decompose": lambda t: apply(t, inline, "num.axpy", "num.poly"),
        "bodies": lambda t: apply(t, swap, "num.mul"),
    }
    for name in data.draw(st.permutations(sorted(passes))):
        after = checked(passes[name](trace))
        before = {p.name: p.tags for c in trace.calls for p in c.flat_outs}
        for p in (*after.inputs, *(p for c in after.calls for p in c.flat_outs)):
            assert set(before.get(p.name, ())) <= set(p.tags), name
        trace = after
        if name == "claim":
            break

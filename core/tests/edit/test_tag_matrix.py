"""The full matrix of tag policies: every operation that makes or moves carriers, every policy.

Each operation is run once for each of the sixteen policies, with the tag on a call and on a value.
The table has the expected policy under which the new carrier has the tag. It is also in
``docs/tags.md``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.expansion import Expanded, bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import Replacement, rewrite
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.tags import NO_TAGS, Tag, TagRegistry, TagSet
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.passes.claim import claim
from tj_core.passes.cse import cse
from tj_core.passes.dce import dce
from tj_core.testing.numeric import call, expansions, vector
from tj_core.text.language import EMPTY_LANGUAGE
from tj_core.verify.verifier import verify

X, Y = vector("x", 2), vector("y", 2)
POLICIES = ("into_body", "to_replacement", "through_views", "to_backward")
ALWAYS = "always"


def made(name, *args, out="t", tags=NO_TAGS, value=NO_TAGS, **more) -> BoundSymbol:
    plain = call(name, *args, tags=tags, **more)
    bound = bind_outputs(plain, expansions.require(plain).value(plain), lambda i: f"{out}{i or ''}")
    return bound.replace(outputs=bound.outputs.replace(tags=value))


@dataclass(frozen=True)
class World:
    """One policy: its registry, and the tag on a call (``tags``) or a value (``value``)."""

    registry: TagRegistry
    tags: TagSet
    value: TagSet

    def program(self, *calls, outputs=None, inputs=(X, Y)):
        trace = Trace(
            inputs,
            calls,
            calls[-1].outputs if outputs is None else outputs,
            language=EMPTY_LANGUAGE,
        )
        verify(trace, level=2, tags=self.registry, expand=expansions)
        return trace

    def made(self, name, *args, **more):
        return made(name, *args, tags=self.tags, value=self.value, **more)

    def rewritten(self, trace, key, rule, into_bodies=False):
        rules = RuleTable("rules")
        rules.set(key, rule)
        after = rewrite(
            trace,
            rules,
            expand=expansions,
            tags=self.registry,
            name="pass",
            into_bodies=into_bodies,
        )
        verify(after, level=2, tags=self.registry, expand=expansions)
        return after

    def claimed(self, trace, *keys):
        def executor(name, claimed, **more):
            claims = RuleTable("claim")
            for key in claimed:
                claims.set(key, Claim(None if more else (lambda *args: args)))
            return Executor(name, claims, **more)

        executors = [executor("mine", keys), executor("python", ["num.*"], fallback=True)]
        after = claim(trace, executors, self.registry).trace
        verify(after, level=2, tags=self.registry, expand=expansions)
        return after


# Each operation returns the call and the value that stand for the tagged ones.


def left_alone(w):
    mine, other = w.made("mul", X, X), made("neg", Y, out="u")
    after = w.rewritten(
        w.program(mine, other, outputs=(mine.outputs, other.outputs)),
        "num.neg",
        lambda c, edit: Replacement((edit.call("num.reciprocal", Y, outputs=("u",)),)),
    )
    return after.calls[0], after.outputs[0]


def dead_code(w):
    kept = w.made("neg", X)
    after = dce(w.program(kept, made("neg", Y, out="dead"), outputs=kept.outputs))
    return after.calls[0], after.outputs


def inlined(w):
    after = w.rewritten(
        w.program(w.made("axpy", X, X, Y)), "num.axpy", lambda c, edit: edit.inline()
    )
    return after.calls[0], after.outputs


def claimed_whole(w):
    after = w.claimed(w.program(w.made("axpy", X, X, Y)), "num.axpy")
    assert after.calls[0].executor == "mine"
    return after.calls[0], after.outputs


def claimed_by_part(w):
    after = w.claimed(w.program(w.made("axpy", X, X, Y)), "num.mul")
    assert after.calls[0].executor == "mine"
    return after.calls[0], after.outputs


def replaced(w):
    after = w.rewritten(
        w.program(w.made("neg", X)),
        "num.neg",
        lambda c, edit: Replacement((edit.call("num.reciprocal", X, outputs=("t",)),)),
    )
    return after.calls[0], after.outputs


def replaced_under_another_name(w):
    def rule(c, edit):
        new = edit.call("num.reciprocal", X)
        return Replacement((new,), {"t": new.outputs})

    after = w.rewritten(w.program(w.made("neg", X)), "num.neg", rule)
    return after.calls[0], after.outputs


def replaced_by_an_elder(w):
    elder = made("mul", X, Y, out="u")
    after = w.rewritten(
        w.program(elder, w.made("neg", X)),
        "num.neg",
        lambda c, edit: Replacement((), {"t": elder.outputs}),
    )
    return None, after.outputs


def expanded_again(w):
    first = made("neg", X, out="u")
    second = w.made("mul", first.outputs, Y)
    trace = w.program(first, second)

    def needs_gradient(c, edit):
        new = edit.call("num.reciprocal", X, outputs=("u",))
        return Replacement((new.replace(outputs=new.outputs.replace(requires_grad=True)),))

    rules = RuleTable("rules")
    rules.set("num.neg", needs_gradient)
    after = rewrite(trace, rules, expand=expansions, tags=w.registry, name="pass")
    assert after.calls[1] is not second
    return after.calls[1], after.outputs


def merged_by_cse(w):
    elder = made("neg", X, out="u")
    user = lambda t: made("mul", t.outputs, elder.outputs, out="z")  # noqa: E731
    younger = w.made("neg", X)
    after = cse(w.program(elder, younger, user(younger)), w.registry)
    assert len(after.calls) == 2
    return after.calls[0], after.calls[1].args[0]


def edited_inside(w):
    after = w.rewritten(
        w.program(w.made("axpy", X, X, Y)),
        "num.mul",
        lambda c, edit: Replacement((edit.call("num.add", *c.args, outputs=(c.outputs.name,)),)),
        into_bodies=True,
    )
    assert after.calls[0].symbol.edited
    return after.calls[0], after.outputs


def viewed(w):
    """A call that a rule makes is a view of the tagged value."""
    base = vector("x", 2, tags=w.value)
    after = w.rewritten(
        w.program(made("neg", base), inputs=(base, Y)),
        "num.neg",
        lambda c, edit: Replacement((edit.call("num.same", base, outputs=("t",)),)),
    )
    return None, after.outputs


def metadata_changed(w):
    shrinks = Expanded(None, Effects(rebinds=((0, vector("_", 1)),)))
    bound = bind_outputs(call("shrink_", vector("p", 2, tags=w.value)), shrinks, str)
    return None, bound.effects.rebinds[0][1]


def printed_and_read(w):
    trace = w.program(w.made("axpy", X, X, Y))
    after = Trace.parse(str(trace), language=trace.language)
    return after.calls[0], after.outputs


@dataclass(frozen=True)
class Row:
    """The policy by which an operation carries over the tag of a call, and of a value, or "always".

    Empty if the operation leaves no new carrier.
    """

    what: str
    run: Callable[[World], tuple[BoundSymbol | None, object]]
    call: str
    value: str


MATRIX = (
    Row("a pass leaves the call alone", left_alone, ALWAYS, ALWAYS),
    Row("dead code is removed around it", dead_code, ALWAYS, ALWAYS),
    Row("the call's body takes its place", inlined, "into_body", ALWAYS),
    Row("an executor claims the call", claimed_whole, ALWAYS, ALWAYS),
    Row("an executor claims a part of the call", claimed_by_part, "into_body", ALWAYS),
    Row("a rule replaces the call", replaced, "to_replacement", "to_replacement"),
    Row(
        "a rule replaces it, its value under another name",
        replaced_under_another_name,
        "to_replacement",
        "to_replacement",
    ),
    Row("an older value takes its value's place", replaced_by_an_elder, "", "to_replacement"),
    Row("the call is expanded again", expanded_again, ALWAYS, ALWAYS),
    Row("an equal call takes its place (cse)", merged_by_cse, ALWAYS, ALWAYS),
    Row("a rule edits the call's body", edited_inside, ALWAYS, ALWAYS),
    Row("a view of the value is made", viewed, "", "through_views"),
    Row("the value's metadata is changed in place", metadata_changed, "", ALWAYS),
    Row("the trace is printed and read", printed_and_read, ALWAYS, ALWAYS),
)


CELLS = [(row, carrier) for row in MATRIX for carrier in ("call", "value") if getattr(row, carrier)]


def policies():
    return [dict(zip(POLICIES, bits, strict=True)) for bits in itertools.product((0, 1), repeat=4)]


@pytest.mark.parametrize("policy", policies(), ids=lambda p: "".join(map(str, p.values())))
@pytest.mark.parametrize(("row", "carrier"), CELLS, ids=lambda x: getattr(x, "what", x))
def test_a_tag_travels_as_its_policy_says(row, carrier, policy):
    says = getattr(row, carrier)
    registry = TagRegistry([("test", Tag("T", **{k: bool(v) for k, v in policy.items()}))])
    on = TagSet(["T"])
    world = World(
        registry, on if carrier == "call" else NO_TAGS, on if carrier == "value" else NO_TAGS
    )
    found = dict(zip(("call", "value"), row.run(world), strict=True))[carrier]
    expected = says == ALWAYS or bool(policy[says])
    assert ("T" in found.tags) is expected


@pytest.mark.parametrize("policy", policies(), ids=lambda p: "".join(map(str, p.values())))
def test_what_travels_to_the_backward(policy):
    registry = TagRegistry([("test", Tag("T", **{k: bool(v) for k, v in policy.items()}))])
    assert bool(registry.propagated(TagSet(["T"]), "to_backward")) is bool(policy["to_backward"])


def test_views_that_the_program_made_itself():
    """Frontends put tags that go through views on outputs that alias arguments."""
    from tj_core.edit.tag_propagation import with_view_tags

    registry = TagRegistry([("test", Tag("T", through_views=True)), ("test", Tag("U"))])
    base = vector("b", 2, tags=TagSet(["T", "U"]))
    viewing = call(
        "view", base, outputs=vector("v", 2), effects=Effects(aliases=(Alias(0, "arg"),))
    )
    assert with_view_tags(viewing, registry).outputs.tags == TagSet(["T"])


def test_a_view_of_two_values_has_the_tags_of_both():
    from tj_core.edit.tag_propagation import with_view_tags

    registry = TagRegistry(("test", Tag(name, through_views=True)) for name in "TU")
    one, two = vector("a", 2, tags=TagSet(["T"])), vector("b", 2, tags=TagSet(["U"]))
    effects = Effects(aliases=(Alias(0, "arg", 0), Alias(0, "arg", 1)))
    viewing = call("cat", one, two, outputs=vector("v", 2), effects=effects)
    assert with_view_tags(viewing, registry).outputs.tags == TagSet(["T", "U"])


def test_a_value_that_stands_for_two_others_inherits_from_both():
    from tj_core.edit.tag_propagation import TagInheritance

    registry = TagRegistry(("test", Tag(name)) for name in "TUV")
    inheritance = TagInheritance(registry)
    heir = vector("x", 2, tags=TagSet(["V"]))
    for tag in "TU":
        inheritance.inherit(heir, TagSet([tag]))
    assert inheritance.proxy(heir).tags == TagSet(["T", "U", "V"])


def test_the_page_shows_the_matrix():
    page = (Path(__file__).parents[3] / "docs/tags.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| ([^|]+) \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    cells = [(r.what, _cell(r.call), _cell(r.value)) for r in MATRIX]
    assert [row for row in said if row in cells] == cells


def _cell(says: str) -> str:
    return f"`{says}`" if says in POLICIES else says or "no such call"

"""Calls inside of which somebody has a gradient: they give way to their bodies before JOINT.

A rule or pair for ``aten.addmm.default`` serves ``torch.nn.functional.linear``, too, if nobody has
one for that. A body takes its call's place only where it has the call's gradients: what autograd
sees when the call runs has to be what stands in the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.errors import TjError
from tj_core.inlining import can_inline, inline
from tj_core.passes import PassContext
from tj_core.proxy import Proxy, TensorProxy
from tj_core.reexpand import learn, reexpand
from tj_core.rewrite import Editor, Replacement
from tj_core.rules import RuleTable
from tj_core.symbol import Body, BoundSymbol
from tj_core.trace import Change, Namer, Trace
from tj_torch.dialect.observed import observed, same_operators
from tj_torch.names import resolve

from tj_autograd.joint import carries
from tj_autograd.lookup import Lookup, Owner
from tj_autograd.rules import draws_elsewhere

__all__ = ["Descended", "descended"]


@dataclass(frozen=True, slots=True)
class Descended:
    """``trace`` with bodies in the places of some calls.

    ``opened`` are these calls, with who has a gradient inside; ``refused`` are the calls (by label)
    that stay whole though somebody has, and why.
    """

    trace: Trace
    opened: tuple[Change, ...] = ()
    refused: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def explained(self, joint: Trace) -> Trace:
        """``joint``, made of ``trace``, whose last pass names the opened calls with the others."""
        if not self.opened or joint is self.trace:
            return joint
        record = joint.history[-1]
        # The backward's order: what was opened comes after all that came of it.
        inside = {c.label: c.parent for c in self.trace.calls if c.parent}
        todo = {change.call: change for change in self.opened}
        changes: list[Change] = []
        for change in reversed(record.changes):
            opened = todo.pop(inside.get(change.call) or "", None)
            changes += [change] if opened is None else [opened, change]
        made = replace(record, changes=(*todo.values(), *changes)[::-1])
        return joint.replace(history=(*joint.history[:-1], made))


def descended(trace: Trace, lookup: Lookup, context: PassContext) -> Descended:
    """``trace`` in which calls are open that have no gradient of their own, but parts of which do.

    Costs nothing where no plugin and no executor has a gradient.
    """
    if not lookup.others():
        return Descended(trace)
    walk = _Walk(lookup, context)
    rules: RuleTable[Any] = RuleTable("descend")
    rules.set("*", walk.rule)
    made, before = trace, None
    while made is not before:  # once for each level
        before = made
        made = context.rewrite(made, rules, into_bodies=False, into_regions=False)
    if not walk.opened:
        return Descended(trace, refused=walk.refused)
    return Descended(made.replace(history=trace.history), tuple(walk.opened), walk.refused)


class _Refused(Exception):
    """Why a body is not to take its call's place."""


@dataclass
class _Walk:
    """Looks for gradients in bodies; ``inside`` says which bodies have any for some symbol."""

    lookup: Lookup
    context: PassContext
    opened: list[Change] = field(default_factory=list)
    refused: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    inside: dict[int, tuple[Body, bool]] = field(default_factory=dict)

    def rule(self, call: BoundSymbol, edit: Editor) -> Replacement | None:
        """The body of ``call`` in its place, if somebody has a gradient for a part of it."""
        if not self.may_open(call):
            return None
        try:
            owner = self.owner(call)
            if owner is None:
                return None
            made = edit.inline()
            calls = self.renewed(call, made.calls)
        except _Refused as refused:
            self.refused[call.label] = (("autograd", f"somebody has a gradient inside, but {refused}"),)
            return None
        change = Change(call.label, "autograd", f"opened for {owner[1]} of {owner[0]}")
        self.opened.append(replace(change, declined=self.lookup.whole(call)[1]))
        return Replacement(calls, made.values, decomposed=True)

    def may_open(self, call: BoundSymbol) -> bool:
        """Whether ``call`` needs a gradient, has none of its own, and might have one inside."""
        body = call.body
        if body is None or call.regions or not carries(call) or not self.has_inside(body):
            return False
        return not self.lookup.whole(call)[0]

    def has_inside(self, body: Body) -> bool:
        """Whether somebody has a gradient for a symbol in ``body``, at any depth."""
        known = self.inside.get(id(body))
        if known is None:
            found = any(
                self.lookup.knows(c.symbol) or (c.body and self.has_inside(c.body))
                for c in body.calls
            )
            known = self.inside[id(body)] = body, bool(found)
        return known[1]

    def owner(self, call: BoundSymbol) -> Owner | None:
        """The first who has a gradient for a part of ``call`` that needs one.

        :raises _Refused: if the body is not to take the call's place.
        """
        if not can_inline(call):
            raise _Refused("its body cannot stand for it")
        names = Namer({p.name for p in (*call.flat_args, *call.flat_outs)})
        inner = self.renewed(call, inline(call, names, self.context.tags).calls)
        owner = next(filter(None, map(self.owner_of, inner)), None)
        if owner is not None:
            self.must_have_gradients(call, inner)
        return owner

    def owner_of(self, call: BoundSymbol) -> Owner | None:
        """Who has a gradient for ``call``, a part of another, or for a part of it."""
        if not carries(call):
            return None
        found = self.lookup.whole(call)[0]
        if found is not None:
            return found
        try:
            return self.owner(call) if self.may_open(call) else None
        except _Refused:
            return None

    def renewed(
        self, call: BoundSymbol, calls: tuple[BoundSymbol, ...]
    ) -> tuple[BoundSymbol, ...]:
        """``calls``, the body of ``call``, with what autograd makes of their values.

        :raises _Refused: if the results are not those that the call has.
        """
        expand, tags = self.context.expand, self.context.tags
        env: dict[str, Any] = {p.name: p for p in call.flat_args if p != _plain(p)}
        made = []
        for inner in (c.map_proxies(_plain) for c in calls):
            try:
                made.append(reexpand(inner, env, expand, tags))
            except TjError as error:
                raise _Refused(f"its body cannot stand alone: {error.message}") from error
            learn(inner, made[-1], env)
        known = {p.name: p for p in call.flat_outs}
        found = (p for c in made for p in c.flat_outs)
        if any(not p.same_meta(known.get(p.name, p)) for p in found):
            raise _Refused("its body has other results")
        return tuple(made)

    def must_have_gradients(self, call: BoundSymbol, inner: tuple[BoundSymbol, ...]) -> None:
        """The gradients of ``inner``, its body, have to be those of ``call``.

        :raises _Refused: if they are not, or nobody knows.
        """
        if any(c.context.get(key) != call.context.get(key) for c in inner for key in MODES):
            raise _Refused("its body changes whether gradients are taken")
        if any(map(draws_elsewhere, inner)):
            raise _Refused("its body draws random numbers in another order than it says")
        if call.symbol.edited:
            return  # it is what its body says
        if call.symbol.functional or not self.same(call, inner):
            raise _Refused("its body computes its values in another way than autograd sees")

    def same(self, call: BoundSymbol, inner: tuple[BoundSymbol, ...]) -> bool:
        """Whether autograd sees ``inner`` when ``call`` runs."""
        dialects = self.lookup.dialects
        try:
            fn = resolve(call.symbol)
        except LookupError:
            return True  # a plugin's own operation, which is what the plugin says
        given = call.args, dict(call.kwargs), call.context
        try:
            if dialects.memo.expand(fn, *given, self.lookup.modes, dialects.sizes).kind == "KERNEL":
                return False
            seen = observed(dialects.memo.expander, fn, *given, dialects.sizes)
        except TjError:
            return False
        return same_operators(seen, inner)


MODES = ("grad", "inference")
"""The keys of a context that say whether gradients are taken."""


def _plain(p: Proxy) -> Proxy:
    """``p`` before autograd."""
    return p.replace(requires_grad=False) if isinstance(p, TensorProxy) and p.requires_grad else p

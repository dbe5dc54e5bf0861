"""Decomposition, before JOINT, of calls whose parts have a gradient of a plugin or executor.

A rule or pair for ``aten.addmm.default`` applies inside ``torch.nn.functional.linear`` too, if
there is none for that function. A body takes its call's place only if it has the call's gradients:
autograd must see the same operators when the call runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tj_core.extend import (
    Body,
    BoundSymbol,
    CallEditor,
    Change,
    Decline,
    Namer,
    PassContext,
    Replacement,
    RuleTable,
    TjError,
    Trace,
    TraceEditor,
    can_inline,
    inline,
    reexpand_all,
    substituted,
    without_grad,
)
from tj_torch.extend import is_python, python_body, resolve, same_operators
from tj_torch.internal import Unkeyable, call_key, known_of

from tj_autograd.joint.build import NotDifferentiable, carries
from tj_autograd.joint.rules import draws_elsewhere

if TYPE_CHECKING:
    from tj_autograd.joint.lookup import Lookup
    from tj_autograd.joint.pairs import Declined

T = TypeVar("T")

__all__ = ["Decomposed", "decomposed"]


@dataclass(frozen=True, slots=True)
class Decomposed:
    """``trace`` with the bodies of some calls in their places.

    ``decomposed`` are changes that name these calls and the reasons. ``kept_whole`` maps the label
    of a call that stays whole, although a part of it has a gradient, to the reasons.
    """

    trace: Trace
    decomposed: tuple[Change, ...] = ()
    kept_whole: Mapping[str, Declined] = field(default_factory=dict)


def decomposed(trace: Trace, lookup: Lookup, context: PassContext) -> Decomposed:
    """Decompose the calls of ``trace`` that have no gradient of their own, but parts that have one.

    A part counts if an executor or a plugin has a gradient for it. Calls that are defined by their
    body alone are decomposed too.

    :raises NotDifferentiable: if a call that is defined by its body alone cannot be decomposed.
    """
    if not lookup.others() and not any(map(_is_its_body, trace.calls)):
        return Decomposed(trace)
    walk = _Walk(lookup, context)
    rules: RuleTable[Any] = RuleTable("decompose")
    rules.set("*", walk.rule)
    made, before = trace, None
    while made is not before:  # one level per turn
        before = made
        made = context.rewrite(made, rules, into_bodies=False, into_subprograms=False)
    if walk.decomposed:
        editor = TraceEditor(trace)
        editor.append(*made.calls)
        trace = editor.done(inputs=made.inputs, outputs=made.outputs)
    return Decomposed(trace, tuple(walk.decomposed), walk.kept_whole)


class _Refused(Exception):
    """Reason why a body is not to take its call's place."""


@dataclass
class _Walk:
    """Searches bodies for gradients.

    ``inside`` caches the first call with a gradient in each body, by the body's id. ``known``
    caches results of `once`.
    """

    lookup: Lookup
    context: PassContext
    decomposed: list[Change] = field(default_factory=list)
    kept_whole: dict[str, Declined] = field(default_factory=dict)
    inside: dict[int, tuple[Body, BoundSymbol | None]] = field(default_factory=dict)
    known: dict[Any, tuple[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.above = self.lookup.above_operators()

    def rule(self, call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        """Replace ``call`` by its body if its gradient is to be taken of the parts."""
        for level in self.levels(call):
            try:
                reason = self.reason(level)
                if reason is None:
                    self.notewithout_grad(level)
                    continue
                made = inline(level, edit.fresh, self.context.tags)
                calls = self.renewed(call, made.calls)
            except _Refused as error:
                self.refuse(level, str(error))
                continue
            change = Change(call.label, "autograd", f"decomposed: {reason}")
            self.decomposed.append(replace(change, declined=self.lookup.whole(call)[1]))
            self.kept_whole.pop(call.label, None)
            return Replacement(calls, made.values, decomposed=True)
        return None

    def levels(self, call: BoundSymbol) -> Iterator[BoundSymbol]:
        """Yield ``call`` with each body that may have gradients inside, the highest level first."""
        if call.body is None or call.subprograms or not carries(call):
            return
        if [inner.symbol for inner in call.body.calls] == [call.symbol]:  # an operator
            return
        if self.lookup.whole(call)[0] is not None:
            return
        if self.above and (body := self.python_body(call)) is not None:
            yield call.replace(body=body)
        if _is_its_body(call) or self.first_inside(call.body) is not None:
            yield call

    def python_body(self, call: BoundSymbol) -> Body | None:
        """The body of ``call`` made of PyTorch functions, if one of these has a gradient; else
        None.
        """
        fn, dialects = _function(call), self.lookup.dialects
        if fn is None or not is_python(fn):
            return None

        def make() -> Body | None:
            try:
                return python_body(call, fn, dialects.names, dialects.memo.expander, dialects)
            except TjError:
                return None

        body = self.once("python", fn, call, make)
        return None if body is None or self.first_inside(body) is None else body

    def refuse(self, call: BoundSymbol, why: str) -> None:
        """Record ``why`` the call stays whole.

        :raises NotDifferentiable: if the call is defined by its body alone.
        """
        if _is_its_body(call):
            raise NotDifferentiable(
                Decline(f"{call.symbol} is what its body says, but {why}", call.source)
            )
        assert call.body is not None
        inner = self.first_inside(call.body)
        if inner is None:
            return
        said = f"its gradient of {inner.symbol} is not used: {why}"
        names = self.lookup.owners(inner)
        self.kept_whole[call.label] = tuple((name, said) for name in names)

    def notewithout_grad(self, call: BoundSymbol) -> None:
        """Record that a gradient inside is for plain tensors, while ``call`` is on a subclass."""
        inner = None if call.body is None else self.first_inside(call.body)
        if inner is None or inner.on_subclass or not call.on_subclass:
            return
        key = f"{call.kinds[0]}.{self.around(call).symbol.qualname}"
        said = f"its gradient of {inner.symbol} is for plain tensors; here its key is {key}"
        self.kept_whole[call.label] = tuple((name, said) for name in self.lookup.owners(inner))

    def around(self, call: BoundSymbol) -> BoundSymbol:
        """The innermost call on a subclass, ``call`` or one in it, whose body has the first
        gradient.
        """
        parts = (call.body.calls if call.body is not None else ()) if call.on_subclass else ()
        holding = (c for c in parts if c.on_subclass and self.call_with_gradient(c) is not None)
        inner = next(holding, None)
        return call if inner is None else self.around(inner)

    def first_inside(self, body: Body) -> BoundSymbol | None:
        """The first call in ``body``, at any depth, that has a gradient of a plugin or executor."""
        known = self.inside.get(id(body))
        if known is None:
            found = (self.call_with_gradient(call) for call in body.calls)
            known = self.inside[id(body)] = body, next(filter(None, found), None)
        return known[1]

    def call_with_gradient(self, call: BoundSymbol) -> BoundSymbol | None:
        if self.lookup.owners(call):
            return call
        return None if call.body is None else self.first_inside(call.body)

    def reason(self, call: BoundSymbol) -> str | None:
        """Reason to decompose ``call``; None if there is none.

        :raises _Refused: if the body must not take the call's place.
        """
        if not can_inline(call):
            raise _Refused("the body cannot stand in its place")
        if _is_its_body(call):
            return "it is what its body says"
        names = Namer({p.name for p in (*call.flat_args, *call.flat_outs)})
        inner = self.renewed(call, inline(call, names, self.context.tags).calls)
        reason = next(filter(None, map(self.part, inner)), None)
        if reason is not None:
            self.must_have_gradients(call, inner)
        return reason

    def part(self, call: BoundSymbol) -> str | None:
        """Owner of the gradient for ``call``, a part of another call, or for a part of it; None
        without.
        """
        if not carries(call):
            return None
        owner = self.lookup.whole(call)[0]
        if owner is not None:
            return f"{owner[1]} of {owner[0]}"
        for level in self.levels(call):
            with contextlib.suppress(_Refused):
                if reason := self.reason(level):
                    return reason
        return None

    def renewed(self, call: BoundSymbol, calls: tuple[BoundSymbol, ...]) -> tuple[BoundSymbol, ...]:
        """Expand ``calls``, the body of ``call``, again with the ``requires_grad`` of its values.

        :raises _Refused: if the results differ from those of the call.
        """
        expand, tags = self.context.expand, self.context.tags
        env: dict[str, Any] = {p.name: p for p in call.flat_args if p != without_grad(p)}
        try:
            made = reexpand_all((c.map_proxies(without_grad) for c in calls), env, expand, tags)
        except TjError as error:
            raise _Refused(f"its body cannot stand alone: {error.message}") from error
        known = {p.name: p for p in call.flat_outs}
        found = (p for c in made for p in c.flat_outs)
        if any(not p.same_meta(substituted(p, known)) for p in found):
            raise _Refused("its body has other results")
        return made

    def must_have_gradients(self, call: BoundSymbol, inner: tuple[BoundSymbol, ...]) -> None:
        """Check that the gradients of ``inner``, the body, are those of ``call``.

        :raises _Refused: if they are not, or it is unknown.
        """
        if any(c.context.get(key) != call.context.get(key) for c in inner for key in MODES):
            # As `torch.no_grad()` inside of a function: the parts would be differentiated one by
            # one, under the grad mode of the call.
            raise _Refused("its body changes whether gradients are taken")
        if any(map(draws_elsewhere, inner)):
            raise _Refused("its body draws random numbers in another order than it says")
        if call.symbol.functional or not self.same(call, inner):
            raise _Refused("its body computes its values in another way than autograd sees")

    def same(self, call: BoundSymbol, inner: tuple[BoundSymbol, ...]) -> bool:
        """Check that autograd sees ``inner`` when ``call`` runs."""
        if all(c.symbol.namespace != "aten" for c in inner):
            return True  # PyTorch functions, which Python calls one by one
        fn, dialects, modes = resolve(call.symbol), self.lookup.dialects, self.lookup.modes
        return same_operators(
            self.once("seen", fn, call, lambda: dialects.observed(call, modes)), inner
        )

    def once(
        self, what: str, fn: Callable[..., Any], call: BoundSymbol, make: Callable[[], T]
    ) -> T:
        """Compute ``make()`` once for equal calls of ``fn``; ``what`` tells questions apart."""
        try:
            key, alive, symbols = call_key(fn, call.args, dict(call.kwargs), call.context, what)
        except Unkeyable:
            # No key, as for a function with a closure, which may change: computed each time.
            return make()
        key = (*key, *known_of(symbols, self.lookup.dialects.sizes))
        if key not in self.known:
            # Keys have ids of objects: while these live, nothing else gets their ids.
            self.known[key] = make(), alive
        found: T = self.known[key][0]
        return found


MODES = ("grad", "inference")
"""Context keys that say if gradients are taken."""


def _function(call: BoundSymbol) -> Callable[..., Any] | None:
    """The function that ``call`` runs; None if no name resolves to it, or its body was edited."""
    if call.symbol.edited:
        return None
    try:
        return resolve(call.symbol)
    except LookupError:
        return None


def _is_its_body(call: BoundSymbol) -> bool:
    """Test for a call that is defined by its body alone: it was edited, or its symbol resolves to
    nothing.
    """
    if call.body is None or call.executor:
        return False
    return call.symbol.edited or (
        call.symbol.namespace not in _FUNCTIONS and _function(call) is None
    )


_FUNCTIONS = ("torch", "aten", "tj", "operator", "math", "builtins")
"""Namespaces whose symbols resolve to functions, unless they were edited."""

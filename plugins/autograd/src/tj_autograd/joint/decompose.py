"""Calls inside of which somebody has a gradient: they give way to their bodies before JOINT.

A rule or pair for ``aten.addmm.default`` serves ``torch.nn.functional.linear``, too, if nobody has
one for that. A body takes its call's place only where it has the call's gradients: what autograd
sees when the call runs has to be what stands in the body.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tj_core.extend import (
    Body,
    BoundSymbol,
    Change,
    Decline,
    Editor,
    Namer,
    PassContext,
    Proxy,
    Replacement,
    RuleTable,
    TensorProxy,
    TjError,
    Trace,
    TraceEditor,
    can_inline,
    inline,
    reexpand_all,
    substituted,
)
from tj_torch.extend import (
    Unkeyable,
    call_key,
    is_python,
    known_of,
    python_body,
    resolve,
    same_operators,
)

from tj_autograd.joint.build import NotDifferentiable, carries
from tj_autograd.joint.lookup import Lookup
from tj_autograd.joint.pairs import Declined
from tj_autograd.joint.rules import draws_elsewhere

T = TypeVar("T")

__all__ = ["Decomposed", "decomposed"]


@dataclass(frozen=True, slots=True)
class Decomposed:
    """``trace`` with bodies in the places of some calls.

    ``decomposed`` are these calls, and why; ``kept_whole`` those (by label) that stay whole
    although somebody has a gradient inside, and why.
    """

    trace: Trace
    decomposed: tuple[Change, ...] = ()
    kept_whole: Mapping[str, Declined] = field(default_factory=dict)


def decomposed(trace: Trace, lookup: Lookup, context: PassContext) -> Decomposed:
    """``trace`` with calls open that have no gradient of their own, but parts of which do.

    These are calls with a gradient of a plugin's or an executor's inside, and calls that are
    nothing but their bodies. Where neither can be, no body is looked at.

    :raises NotDifferentiable: if a call that is nothing but its body cannot be decomposed.
    """
    if not lookup.others() and not any(map(_is_its_body, trace.calls)):
        return Decomposed(trace)
    walk = _Walk(lookup, context)
    rules: RuleTable[Any] = RuleTable("decompose")
    rules.set("*", walk.rule)
    made, before = trace, None
    while made is not before:  # once for each level
        before = made
        made = context.rewrite(made, rules, into_bodies=False, into_regions=False)
    if walk.decomposed:
        editor = TraceEditor(trace)
        editor.keep(*made.calls)
        trace = editor.done(inputs=made.inputs, outputs=made.outputs)
    return Decomposed(trace, tuple(walk.decomposed), walk.kept_whole)


class _Refused(Exception):
    """Why a body is not to take its call's place."""


@dataclass
class _Walk:
    """Looks for gradients in bodies.

    ``inside`` has for a body the first call that has one, ``known`` what else was found out.
    """

    lookup: Lookup
    context: PassContext
    decomposed: list[Change] = field(default_factory=list)
    kept_whole: dict[str, Declined] = field(default_factory=dict)
    inside: dict[int, tuple[Body, BoundSymbol | None]] = field(default_factory=dict)
    known: dict[Any, tuple[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.above = self.lookup.above_operators()

    def rule(self, call: BoundSymbol, edit: Editor) -> Replacement | None:
        """The body of ``call`` in its place, if that is what is to be differentiated."""
        for level in self.levels(call):
            try:
                reason = self.reason(level)
                if reason is None:
                    self.note_plain(level)
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
        """``call`` with the bodies, the highest level first, that may have gradients inside."""
        if call.body is None or call.regions or not carries(call):
            return
        if [inner.symbol for inner in call.body.calls] == [call.symbol]:  # as those of operators
            return
        if self.lookup.whole(call)[0] is not None:
            return
        if self.above and (body := self.python_body(call)) is not None:
            yield call.replace(body=body)
        if _is_its_body(call) or self.first_inside(call.body) is not None:
            yield call

    def python_body(self, call: BoundSymbol) -> Body | None:
        """The body of ``call`` made of PyTorch's functions, if one of those has a gradient."""
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
        """Note why ``call`` stays whole.

        :raises NotDifferentiable: if it cannot.
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

    def note_plain(self, call: BoundSymbol) -> None:
        """Note that a gradient is for plain tensors, and ``call`` for what holds them."""
        inner = None if call.body is None else self.first_inside(call.body)
        if inner is None or inner.on_subclass or not call.on_subclass:
            return
        key = f"{call.kinds[0]}.{self.around(call).symbol.qualname}"
        said = f"its gradient of {inner.symbol} is for plain tensors; here its key is {key}"
        self.kept_whole[call.label] = tuple((name, said) for name in self.lookup.owners(inner))

    def around(self, call: BoundSymbol) -> BoundSymbol:
        """The call on a subclass, ``call`` or one in it, whose own body has the first gradient."""
        parts = (call.body.calls if call.body is not None else ()) if call.on_subclass else ()
        holding = (c for c in parts if c.on_subclass and self.call_with_gradient(c) is not None)
        inner = next(holding, None)
        return call if inner is None else self.around(inner)

    def first_inside(self, body: Body) -> BoundSymbol | None:
        """The first call in ``body``, at any depth, that somebody has a gradient for."""
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
        """Why ``call`` is to be decomposed, if it is.

        :raises _Refused: if the body is not to take the call's place.
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
        """Whose gradient there is for ``call``, which is part of another, or for a part of it."""
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
        """``calls``, the body of ``call``, with what autograd makes of their values.

        :raises _Refused: if the results are not those that the call has.
        """
        expand, tags = self.context.expand, self.context.tags
        env: dict[str, Any] = {p.name: p for p in call.flat_args if p != _plain(p)}
        try:
            made = reexpand_all((c.map_proxies(_plain) for c in calls), env, expand, tags)
        except TjError as error:
            raise _Refused(f"its body cannot stand alone: {error.message}") from error
        known = {p.name: p for p in call.flat_outs}
        found = (p for c in made for p in c.flat_outs)
        if any(not p.same_meta(substituted(p, known)) for p in found):
            raise _Refused("its body has other results")
        return made

    def must_have_gradients(self, call: BoundSymbol, inner: tuple[BoundSymbol, ...]) -> None:
        """The gradients of ``inner``, its body, have to be those of ``call``.

        :raises _Refused: if they are not, or nobody knows.
        """
        if any(c.context.get(key) != call.context.get(key) for c in inner for key in MODES):
            raise _Refused("its body changes whether gradients are taken")
        if any(map(draws_elsewhere, inner)):
            raise _Refused("its body draws random numbers in another order than it says")
        if call.symbol.functional or not self.same(call, inner):
            raise _Refused("its body computes its values in another way than autograd sees")

    def same(self, call: BoundSymbol, inner: tuple[BoundSymbol, ...]) -> bool:
        """Whether autograd sees ``inner`` when ``call`` runs."""
        if all(c.symbol.namespace != "aten" for c in inner):
            return True  # functions of PyTorch's, called one by one
        fn, dialects, modes = resolve(call.symbol), self.lookup.dialects, self.lookup.modes
        return same_operators(
            self.once("seen", fn, call, lambda: dialects.observed(call, modes)), inner
        )

    def once(
        self, what: str, fn: Callable[..., Any], call: BoundSymbol, make: Callable[[], T]
    ) -> T:
        """What ``make`` makes of ``call`` of ``fn``, remembered for equal calls."""
        try:
            key, alive, symbols = call_key(fn, call.args, dict(call.kwargs), call.context, what)
        except Unkeyable:
            return make()
        key = (*key, *known_of(symbols, self.lookup.dialects.sizes))
        if key not in self.known:
            self.known[key] = make(), alive
        found: T = self.known[key][0]
        return found


MODES = ("grad", "inference")
"""The keys of a context that say whether gradients are taken."""


def _plain(p: Proxy) -> Proxy:
    """``p`` before autograd."""
    return p.replace(requires_grad=False) if isinstance(p, TensorProxy) and p.requires_grad else p


def _function(call: BoundSymbol) -> Callable[..., Any] | None:
    """What ``call`` runs; None if no name says that, or its body was edited."""
    if call.symbol.edited:
        return None
    try:
        return resolve(call.symbol)
    except LookupError:
        return None


def _is_its_body(call: BoundSymbol) -> bool:
    """Whether ``call`` means what its body says: it was edited, or is no function of anybody's."""
    if call.body is None or call.executor:
        return False
    return call.symbol.edited or (
        call.symbol.namespace not in _FUNCTIONS and _function(call) is None
    )


_FUNCTIONS = ("torch", "aten", "tj", "operator", "math", "builtins")
"""Namespaces all symbols of which name functions, unless they were edited."""

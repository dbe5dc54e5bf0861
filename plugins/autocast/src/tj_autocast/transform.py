"""The transform: calls under autocast become casts, and calls outside of autocast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tj_core.extend import (
    Body,
    BoundSymbol,
    Constant,
    Context,
    PassContext,
    PassRecord,
    Proxy,
    Stage,
    Symbol,
    TensorProxy,
    TjError,
    Trace,
    TraceEditor,
    Transform,
    bind_outputs,
    substituted,
)
from tj_core.internal import with_programs
from tj_torch.extend import AUTOCAST, WIRING, TorchDialects, is_on

from tj_autocast.bodies import NotTheBody, Opened, functions, operators
from tj_autocast.cast_cache import CastCache
from tj_autocast.casts import Cast, cast_of, casts_of, same_but_for_casts, with_casts
from tj_autocast.inside import INSIDE, autocast_inside
from tj_autocast.notes import CAST_CACHE
from tj_autocast.policies import off, with_policies

__all__ = ["lower_autocast"]

# What PyTorch's `cached_cast` calls, with its gradient.
TO = Symbol("torch", "Tensor.to")


def lower_autocast() -> Transform:
    """Make the transform. It runs before JOINT, which sees plain calls then."""
    # A write to a leaf has become another value by then, which `CastCache` follows.
    return Transform("autocast", _apply, Stage.FUNCTIONAL, priority=50, falls_back=True)


def _apply(trace: Trace, context: PassContext) -> Trace:
    if not any(map(_autocasts, trace.calls)):
        return trace
    return _Lowering(with_policies(trace, context), context, trace.context).lowered()


def _autocasts(call: BoundSymbol) -> bool:
    """Check that the context of ``call`` sets autocast, on or off."""
    return any(key.startswith(AUTOCAST) for key, _ in call.context.items)


@dataclass
class _Lowering:
    """State of one program while autocast is lowered."""

    trace: Trace
    context: PassContext
    ambient: Context

    def __post_init__(self) -> None:
        self.editor = TraceEditor(self.trace, self.context.tags)
        self.cached = CastCache.at_start(self.trace)
        # The rule of any of PyTorch's symbols: one object expands them all.
        dialects = self.context.expand.require(BoundSymbol(Symbol("torch", "add"))).value
        assert isinstance(dialects, TorchDialects)
        self.dialects: TorchDialects = dialects
        grads = {c.tags.get(CAST_CACHE.name) for c in self.trace.calls if c.context.get("grad")}
        self.differentiated = grads

    def lowered(self) -> Trace:
        """Lower all calls of the program."""
        for call in self.trace.calls:
            self.step(self.editor.moved(call))
        return self.editor.done(PassRecord(self.context.name, self.context.plugin))

    def region(self, program: Trace) -> Trace:
        """Lower the program of a region, without a cache: its operation may run it many times."""
        inner = _Lowering(program, self.context, self.ambient)
        for call in program.calls:
            inner.step(inner.editor.moved(call))
        return inner.editor.done(context=off(program.context, self.ambient))

    def step(self, call: BoundSymbol) -> None:
        """Put the lowered form of ``call`` in its place; it stays under autocast if none can be
        found.
        """
        self.cached.follow(call)
        if not is_on(call.context):
            if not self.is_kept(call):
                self.editor.append(self.outside(call))
            return
        for way in self.ways(call):
            start, casts = len(self.editor.calls), dict(self.cached.casts)
            try:
                done = way(call)
            # The call may not expand over other arguments: the next way is tried, and it may stay.
            except (TjError, NotTheBody):
                done = False
            if done:
                self.editor.changed(call, way.__name__, self.context.plugin)
                return
            # A way that failed has left calls, and casts that these make.
            del self.editor.calls[start:]
            self.cached.casts = casts
        self.editor.append(call.replace(tags=call.tags.without(CAST_CACHE.name)))

    def ways(self, call: BoundSymbol) -> tuple[Callable[[BoundSymbol], bool], ...]:
        """Ways to lower ``call``, in the order in which they are tried."""
        devices = tuple(
            key.removeprefix(AUTOCAST)
            for key, value in call.context.items
            if key.startswith(AUTOCAST) and value
        )
        if autocast_inside(call, self.context.tables[INSIDE], devices):
            return ()
        if call.subprograms:
            return (self.by_regions,)
        apart = self.by_functions, self.by_operators
        return (self.unchanged, self.by_casts, *apart, self.by_kept_casts)

    def is_kept(self, call: BoundSymbol) -> bool:
        """Replace ``call``, in the body of one under autocast, by the cached cast if it is one."""
        found = cast_of(call)
        if found is None or self.cached.key(call, *found) is None:
            return False
        self.editor.values[call.flat_outs[0].name] = self.cast(*found, call)
        return True

    def outside(self, call: BoundSymbol) -> BoundSymbol:
        """``call`` in its context without autocast."""
        return call.replace(
            context=off(call.context, self.ambient), tags=call.tags.without(CAST_CACHE.name)
        )

    # ------------------------------------------------------------------ the ways

    def unchanged(self, call: BoundSymbol) -> bool:
        """Keep the call if autocast does nothing to it."""
        if call.symbol.qualname == "torch.clear_autocast_cache":
            if is_on(self.ambient):  # the cache also has casts of the caller's
                self.editor.append(self.outside(call))
            return True
        if call.body is None and not call.effects.ordered:  # it computes on sizes
            self.editor.append(self.outside(call))
            return not any(isinstance(p, TensorProxy) for p in call.flat_outs)
        if call.body is None:
            return False
        made = self.outside(call)
        if self.context.expand.get(call.symbol) is not None:
            again = self.again(made)
            if not _agree(call, again) or not same_but_for_casts(call, again, {}):
                return False
        self.editor.append(made.replace(body=_outside(call.body)))
        return True

    def again(self, call: BoundSymbol) -> BoundSymbol:
        """Expand ``call`` again, with the names of its outputs."""
        names = [p.name for p in call.flat_outs]
        facts = self.context.expand.require(call).value(call)
        return bind_outputs(call, facts, lambda i: names[i])

    def by_casts(self, call: BoundSymbol) -> bool:
        """Cast the arguments of the call, if autocast casts nothing else."""
        if call.body is None:
            return False
        return self.over_casts(call, self.outside(call), casts_of(call))

    def by_kept_casts(self, call: BoundSymbol) -> bool:
        """Leave the call under autocast, and share its cached casts with other calls."""
        if call.body is None:
            return False
        args = call.flat_args
        found = (c for c in casts_of(call) if self.cached.key(call, args[c.places[0]], c.dtype))
        stays = call.replace(tags=call.tags.without(CAST_CACHE.name))
        return self.over_casts(call, stays, tuple(found))

    def over_casts(self, call: BoundSymbol, plain: BoundSymbol, found: tuple[Cast, ...]) -> bool:
        """Put ``plain``, over the results of casts ``found``, in the place of ``call``, if they
        agree.
        """
        casts = {c: self.cast(call.flat_args[c.places[0]], c.dtype, call) for c in found}
        if not casts:
            return False
        made = self.again(with_casts(plain, casts))
        if not _agree(call, made) or not same_but_for_casts(call, made, casts):
            return False
        self.editor.append(made.replace(outputs=call.outputs, body=_tagged(call, made)))
        return True

    def by_regions(self, call: BoundSymbol) -> bool:
        """Lower the regions of a call that only calls its regions."""
        rule = self.context.tables[WIRING].get(call.symbol)
        if rule is None or not rule.value.plain:
            return False
        made = with_programs(self.outside(call), self.region)
        if not _agree(call, made):
            return False
        self.editor.append(made)
        return True

    def by_functions(self, call: BoundSymbol) -> bool:
        """Decompose a PyTorch function, written in Python, into the functions that it calls."""
        opened = functions(call, self.dialects, self.context, self.editor.fresh)
        return self.taken_apart(call, opened)

    def by_operators(self, call: BoundSymbol) -> bool:
        """Decompose the call into the operators in its body, casts among them."""
        opened = operators(call, self.dialects, self.context, self.editor.fresh)
        return self.taken_apart(call, opened)

    def taken_apart(self, call: BoundSymbol, opened: Opened) -> bool:
        """Put the calls of ``opened`` in the place of ``call``."""
        start, values = len(self.editor.calls), dict(self.editor.values)
        for inner in opened.calls:
            self.step(self.editor.moved(inner))
        known = {p.name: p for c in self.editor.calls[start:] for p in c.flat_outs}
        outs = [self.editor.mapped(substituted(p, opened.values)) for p in call.flat_outs]
        outs = [substituted(p, known) for p in outs]
        if not all(map(_same, call.flat_outs, outs)):
            self.editor.values = values
            return False
        self.editor.stands_for(call, start, opened.values)
        return True

    # ------------------------------------------------------------------ casts

    def cast(self, p: Proxy, dtype: Constant, call: BoundSymbol) -> TensorProxy:
        """``p`` cast to ``dtype``, as autocast does for ``call``; cached casts are shared."""
        key = self.cached.key(call, p, dtype)
        if key is not None and key in self.cached.casts:
            return self.cached.casts[key]
        context = off(call.context, self.ambient)
        # The cast is shared with calls that need its gradient: made under `no_grad`, it would have
        # none for them, as in PyTorch up to 2.10.
        if key is not None and call.tags.get(CAST_CACHE.name) in self.differentiated:
            context = context.with_("grad", True)
        made = BoundSymbol(
            TO,
            (p, dtype),
            context=context,
            source=call.source,
            tags=self.context.tags.propagated(call.tags.without(CAST_CACHE.name), "into_body"),
            parent=call.parent or call.label,
        )
        facts = self.context.expand.require(made).value(made)
        wish = f"{p.name}_{facts.outputs.dtype}"
        made = bind_outputs(made, facts, lambda _: self.editor.fresh(wish))
        self.editor.append(made)
        out = made.outputs
        assert isinstance(out, TensorProxy)
        if key is not None:
            self.cached.casts[key] = out
        return out


def _outside(body: Body) -> Body:
    """``body`` without explicit autocast contexts: off is the ambient state of a lowered body."""

    def plain(call: BoundSymbol) -> BoundSymbol:
        items = tuple(i for i in call.context.items if not i[0].startswith(AUTOCAST))
        inside = None if call.body is None else _outside(call.body)
        return call.replace(context=Context(items), body=inside)

    return Body(body.inputs, tuple(map(plain, body.calls)), body.outputs, body.updates)


def _tagged(before: BoundSymbol, after: BoundSymbol) -> Body | None:
    """The body of ``after`` with the tags of the calls in the body of ``before``, casts aside."""
    if before.body is None or after.body is None:
        return after.body
    rest = iter(after.body.calls)
    tags = [c.tags for c in before.body.calls if cast_of(c) is None]
    if not any(tags):
        return after.body
    tagged = [c if cast_of(c) else c.replace(tags=tags.pop(0)) for c in rest]
    return Body(after.body.inputs, tuple(tagged), after.body.outputs, after.body.updates)


def _agree(before: BoundSymbol, after: BoundSymbol) -> bool:
    """Check that both calls return values of the same metadata."""
    return len(before.flat_outs) == len(after.flat_outs) and all(
        map(_same, before.flat_outs, after.flat_outs)
    )


def _same(p: Proxy, other: Any) -> bool:
    return isinstance(other, Proxy) and p.same_meta(other)

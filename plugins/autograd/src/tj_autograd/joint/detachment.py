"""Traces that run below autograd: no value requires grad, and grad mode is off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tj_core.extend import (
    Body,
    BoundSymbol,
    Context,
    Effects,
    Proxy,
    TensorProxy,
    Trace,
    TraceEditor,
    map_tree,
)

__all__ = ["detached"]


def detached(trace: Trace) -> Trace:
    """``trace`` with ``requires_grad`` and grad mode off everywhere, bodies included."""
    run = _Detach()
    editor = TraceEditor(trace)
    editor.append(*map(run.call, trace.calls))
    return editor.done(
        inputs=tuple(map(run.proxy, trace.inputs)),
        outputs=map_tree(run.proxy, trace.outputs, Proxy),
        context=trace.context.with_("grad", False),
    )


@dataclass
class _Detach:
    """Maps calls and bodies; a body that several calls share stays shared."""

    bodies: dict[int, tuple[Body, Body]] = field(default_factory=dict)

    def proxy(self, p: Proxy) -> Proxy:
        if not isinstance(p, TensorProxy) or not p.requires_grad:
            return p
        return p.replace(requires_grad=False)

    def call(self, call: BoundSymbol) -> BoundSymbol:
        mapped = call.map_proxies(self.proxy)
        effects = self.effects(call.effects)
        context = self.context(call.context)
        body = None if call.body is None else self.body(call.body)
        if (mapped, context, body, effects) == (call, call.context, call.body, call.effects):
            return call
        return mapped.replace(context=context, body=body, effects=effects)

    def context(self, context: Context) -> Context:
        if not context.get("grad"):
            return context
        return context.with_("grad", False)

    def effects(self, effects: Effects) -> Effects:
        if not effects.rebinds:
            return effects
        return replace(effects, rebinds=tuple((i, self.proxy(p)) for i, p in effects.rebinds))

    def body(self, body: Body) -> Body:
        known = self.bodies.get(id(body))
        if known is None:
            made = Body(
                tuple(map(self.proxy, body.inputs)),
                tuple(map(self.call, body.calls)),
                map_tree(self.proxy, body.outputs, Proxy),
                tuple((i, map_tree(self.proxy, v, Proxy)) for i, v in body.updates),
            )
            known = self.bodies[id(body)] = (body, body if made == body else made)
        return known[1]

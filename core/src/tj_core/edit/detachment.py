"""Traces that run below autograd: no value requires grad, and grad mode is off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tj_core.edit.editor import TraceEditor
from tj_core.ir.proxy import Proxy, without_grad
from tj_core.ir.trace import Body, BoundSymbol, Trace
from tj_core.ir.tree import map_tree

if TYPE_CHECKING:
    from tj_core.ir.effects import Effects
    from tj_core.ir.symbol import Context

__all__ = ["detached"]


def detached(trace: Trace) -> Trace:
    """``trace`` with ``requires_grad`` and grad mode off everywhere, bodies included."""
    run = _Detach()
    editor = TraceEditor(trace)
    editor.append(*map(run.call, trace.calls))
    return editor.done(
        inputs=tuple(map(without_grad, trace.inputs)),
        outputs=map_tree(without_grad, trace.outputs, Proxy),
        context=trace.context.with_("grad", False),
    )


@dataclass
class _Detach:
    """Maps calls and bodies; a body that several calls share stays shared."""

    bodies: dict[int, tuple[Body, Body]] = field(default_factory=dict)

    def call(self, call: BoundSymbol) -> BoundSymbol:
        mapped = call.map_proxies(without_grad)
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
        return replace(effects, rebinds=tuple((i, without_grad(p)) for i, p in effects.rebinds))

    def body(self, body: Body) -> Body:
        known = self.bodies.get(id(body))
        if known is None:
            made = Body(
                tuple(map(without_grad, body.inputs)),
                tuple(map(self.call, body.calls)),
                map_tree(without_grad, body.outputs, Proxy),
                tuple((i, map_tree(without_grad, v, Proxy)) for i, v in body.updates),
            )
            known = self.bodies[id(body)] = (body, body if made == body else made)
        return known[1]

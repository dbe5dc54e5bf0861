"""Views of memory that only a call itself knows, as `linear` returns of its product, get a root.

Where such a view is returned, or written to, the call's body takes its place: the value that it is
a view of then has a name, from which the view can be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tj_core.bodies import with_args
from tj_core.expand import Expand
from tj_core.inlining import can_inline, inline
from tj_core.proxy import Proxy, TensorProxy
from tj_core.reexpand import learn, reexpand
from tj_core.rules import RuleTable
from tj_core.symbol import BoundSymbol
from tj_core.tags import TagRegistry
from tj_core.trace import Namer, Trace
from tj_core.tree import leaves

__all__ = ["with_roots"]


def with_roots(trace: Trace, *, expand: RuleTable[Expand], tags: TagRegistry) -> Trace:
    """``trace`` with such calls opened, if they have a body that can stand for them."""
    wanted = _needing_a_root(trace)
    if not wanted:
        return trace
    namer = Namer(trace.names())
    calls: list[BoundSymbol] = []
    for call in trace.calls:
        if wanted.isdisjoint(_hidden(call)) or not can_inline(call):
            calls.append(call)
        else:
            calls += _seen_by_autograd(inline(call, namer, tags).calls, expand, tags)
    return trace.replace(calls=tuple(calls))


def _needing_a_root(trace: Trace) -> frozenset[str]:
    """The hidden views that are returned or written to, they or views of them."""
    wanted = {p.name for p in leaves(trace.outputs) if isinstance(p, TensorProxy)}
    found: set[str] = set()
    for call in reversed(trace.calls):
        wanted |= {call.flat_args[i].name for i in call.effects.mutates}
        for alias in call.effects.aliases:
            if alias.kind == "arg" and call.flat_outs[alias.output].name in wanted:
                wanted.add(call.flat_args[alias.index].name)
        found |= wanted.intersection(_hidden(call))
    return frozenset(found)


def _hidden(call: BoundSymbol) -> list[str]:
    """The outputs of ``call`` that are views of hidden memory, and require a gradient."""
    outs = [call.flat_outs[a.output] for a in call.effects.aliases if a.kind == "hidden"]
    return [p.name for p in outs if isinstance(p, TensorProxy) and p.requires_grad]


def _seen_by_autograd(
    calls: Sequence[BoundSymbol], expand: RuleTable[Expand], tags: TagRegistry
) -> list[BoundSymbol]:
    """The calls of a body, of which bodies do not say what requires a gradient, saying it."""
    env: dict[str, Any] = {}
    made: list[BoundSymbol] = []
    for call in calls:
        real = {p.name: env.get(p.name, p) for p in call.flat_args}
        made.append(reexpand(with_args(call, _silent), real, expand, tags))
        learn(call, made[-1], env)
    return made


def _silent(p: Proxy) -> Proxy:
    return p.replace(requires_grad=False) if isinstance(p, TensorProxy) else p

"""Give roots to views of memory inside a call, such as `linear`'s view of its product.

Where such a view is returned or written to, the call's body is inlined: the base then has a name,
from which the view can be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Expand,
    RuleTable,
    TagRegistry,
    TensorProxy,
    Trace,
    TraceEditor,
    can_inline,
    leaves,
    reexpand_all,
    requires_grad,
    with_args,
    without_grad,
)

__all__ = ["with_roots"]


def with_roots(trace: Trace, *, expand: RuleTable[Expand], tags: TagRegistry) -> Trace:
    """Inline calls of ``trace`` that return such views, if their bodies can be inlined."""
    wanted = _needing_a_root(trace)
    if not wanted:
        return trace
    editor = TraceEditor(trace, tags)
    for call in trace.calls:
        if wanted.isdisjoint(_internal_views(call)) or not can_inline(call):
            editor.append(call)
        else:
            editor.append(*_seen_by_autograd(editor.inlined(call).calls, expand, tags))
    return editor.done()


def _needing_a_root(trace: Trace) -> frozenset[str]:
    """Names of internal views that are returned or written to, directly or through a view."""
    wanted = {p.name for p in leaves(trace.outputs) if isinstance(p, TensorProxy)}
    found: set[str] = set()
    for call in reversed(trace.calls):
        wanted |= {call.flat_args[i].name for i in call.effects.mutates}
        for alias in call.effects.aliases:
            if alias.kind == "arg" and call.flat_outs[alias.output].name in wanted:
                wanted.add(call.flat_args[alias.index].name)
        found |= wanted.intersection(_internal_views(call))
    return frozenset(found)


def _internal_views(call: BoundSymbol) -> list[str]:
    """Outputs of ``call`` that are views of memory inside of it and require grad."""
    outs = [call.flat_outs[a.output] for a in call.effects.aliases if a.kind == "internal"]
    return [p.name for p in outs if requires_grad(p)]


def _seen_by_autograd(
    calls: Sequence[BoundSymbol], expand: RuleTable[Expand], tags: TagRegistry
) -> tuple[BoundSymbol, ...]:
    """Calls of a body, expanded again with ``requires_grad``, which bodies do not record."""
    env: dict[str, Any] = {p.name: p for call in calls for p in call.flat_args}
    return reexpand_all((with_args(call, without_grad) for call in calls), env, expand, tags)

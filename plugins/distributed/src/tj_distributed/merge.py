"""The transform: one gather for all reads of a sharded parameter.

Weights that are tied, and those that a forward reads twice, would be gathered twice, and their
gradients averaged apart. ``fully_shard`` gathers them once and averages the sum, and so does this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import Constant, PassRecord, Proxy, Stage, TraceEditor, Transform, leaves

if TYPE_CHECKING:
    from typing import Any

    from tj_core.extend import BoundSymbol, PassContext, Trace

__all__ = ["merge"]

_METHODS = frozenset({"to_local", "redistribute"})
_FUNCTIONS = (".pad", ".DTensor.from_local")


def merge() -> Transform:
    """Make the transform; it comes before gradients, and where nothing is written any more."""
    return Transform("merge_gathers", _apply, Stage.FUNCTIONAL)


def _apply(trace: Trace, context: PassContext) -> Trace:
    editor = TraceEditor(trace, context.tags)
    first: dict[str, list[BoundSymbol]] = {}
    shards = {p.name for p in trace.inputs}
    returned = {p.name for p in leaves(trace.outputs) if isinstance(p, Proxy)}
    for call in map(editor.moved, trace.calls):
        if not _prepares(call) or not all(p.name in shards for p in call.flat_args):
            editor.append(call)
            continue
        shards.update(p.name for p in call.flat_outs)
        elders = first.setdefault(call.symbol.qualname, [])
        same = [e for e in elders if _equal(e, call)]
        # In eager a caller who gets two reads gets two tensors, and may write to one.
        if not same or any(p.name in returned for p in (*call.flat_outs, *same[0].flat_outs)):
            elders.append(call)
            editor.append(call)
            continue
        for old, new in zip(call.flat_outs, same[0].flat_outs, strict=True):
            editor.substitute(old, new, call.source)
        editor.changed(call, f"is {same[0].label}", context.plugin)
    return editor.done(PassRecord(context.name, context.plugin)) if editor.changes else trace


def _prepares(call: BoundSymbol) -> bool:
    """True if ``call`` is a step from a shard to what is gathered of it, and writes nothing."""
    effects = call.effects
    if effects.mutates or effects.rebinds or effects.copies_back:
        return False
    if call.symbol.qualname == "tj.method":
        return call.args[0] in _METHODS
    return call.symbol.qualname.endswith(_FUNCTIONS)


def _equal(one: BoundSymbol, other: BoundSymbol) -> bool:
    """True if both compute the same of the same values, with the same tags."""
    return (
        _named((one.args, one.kwargs)) == _named((other.args, other.kwargs))
        and (one.tags, one.context) == (other.tags, other.context)
        and [p.tags for p in one.flat_outs] == [p.tags for p in other.flat_outs]
    )


def _named(arguments: Any) -> list[Any]:
    return [_spelled(x) for x in leaves(arguments)]


def _spelled(leaf: Any) -> Any:
    """Key of an argument: the name of a value, else the object, such as a placement."""
    if isinstance(leaf, Proxy):
        return leaf.name
    value = leaf.value if isinstance(leaf, Constant) else leaf
    # With the type, since 1, 1.0 and True are equal in Python.
    return type(value), value

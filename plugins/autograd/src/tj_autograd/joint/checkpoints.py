"""Checkpointed regions in joint traces: what goes in and what comes out is all that is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tj_core.extend import BoundSymbol, Proxy, TagRegistry, TagSet, Trace, TraceEditor

from tj_autograd.joint.replay import replayable

__all__ = ["checkpointed"]


def checkpointed(
    joint: Trace, tags: TagRegistry, keeps_state: Callable[[BoundSymbol], bool]
) -> Trace:
    """``joint``, in which regions run again from their inputs, as `torch.utils.checkpoint` says.

    A result of a region that is needed outside of it is tagged ``SAVE``: another region starts
    from it, and does not run this one again. So is one of a call that an executor ``keeps_state``
    for, which runs once.
    """
    if not any("CHECKPOINT" in call.tags for call in joint.calls):
        return joint
    joint = replayable(joint)
    editor = TraceEditor(joint, tags)
    for p in (*_results(joint), *_kept(joint, keeps_state)):
        editor.inherit(p, TagSet(["SAVE"]))
    editor.keep(*joint.calls)
    return editor.done()


def _results(joint: Trace) -> Iterator[Proxy]:
    """The values of regions that gradients, or regions to run again, need outside of these."""
    makers = {p.name: c for c in joint.calls if _runs_again(c) for p in c.defined()}
    regions = {c.label: _region(c) for c in joint.calls if "BACKWARD" not in c.tags}
    for call in joint.calls:
        if "BACKWARD" in call.tags:
            here = regions.get(call.parent or "", "")
        elif _runs_again(call):
            here = _region(call)
        else:
            continue
        for p in call.flat_args:
            if p.name in makers and _region(makers[p.name]) != here and _may_be_saved(p):
                yield p


def _kept(joint: Trace, keeps_state: Callable[[BoundSymbol], bool]) -> Iterator[Proxy]:
    """The values of calls in regions that an executor keeps state for."""
    for call in joint.calls:
        if _runs_again(call) and keeps_state(call):
            yield from call.defined()


def _runs_again(call: BoundSymbol) -> bool:
    again = "RECOMPUTE" in call.tags or "PREFER_RECOMPUTE" in call.tags
    return again and "BACKWARD" not in call.tags and "CHECKPOINT" in call.tags


def _region(call: BoundSymbol) -> str:
    """The outermost region that ``call`` is in: regions inside of it run again with it."""
    return str(call.tags.get("CHECKPOINT", "")).partition(".")[0]


def _may_be_saved(p: Proxy) -> bool:
    return p.tags.keys().isdisjoint(("RECOMPUTE", "DONT_SAVE_FOR_BACKWARD"))

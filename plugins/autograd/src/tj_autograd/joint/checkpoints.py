"""Checkpointed regions in joint traces: their inputs and results are all that is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tj_core.extend import BoundSymbol, Proxy, TagRegistry, TagSet, Trace, TraceEditor

from tj_autograd.joint.replay import replayable

if TYPE_CHECKING:
    from tj_autograd.joint.repeatable import Repeats

__all__ = ["checkpointed", "region", "runs_again"]


def checkpointed(
    joint: Trace,
    tags: TagRegistry,
    keeps_state: Callable[[BoundSymbol], bool],
    repeats: Repeats,
) -> Trace:
    """Tag what checkpointed regions save in ``joint``, as `torch.utils.checkpoint` does.

    A result of a region that is used outside of it is tagged ``SAVE``: a region that starts from it
    does not run this one again. So is a result of a call for which an executor ``keeps_state``,
    which runs once. ``repeats`` are calls that keep their order and may run again.
    """
    # Most programs have no checkpoint: their trace stays the same object.
    if not any("CHECKPOINT" in call.tags for call in joint.calls):
        return joint
    joint = replayable(joint, repeats)
    editor = TraceEditor(joint, tags)
    for p in (*_results(joint), *_kept(joint, keeps_state)):
        editor.inherit(p, TagSet(["SAVE"]))
    editor.append(*joint.calls)
    return editor.done()


def _results(joint: Trace) -> Iterator[Proxy]:
    """Yield the results of regions that a gradient, or a region that runs again, takes outside of
    them.
    """
    makers = {p.name: c for c in joint.calls if runs_again(c) for p in c.defined()}
    regions = {c.label: region(c) for c in joint.calls if "BACKWARD" not in c.tags}
    for call in joint.calls:
        if "BACKWARD" in call.tags:
            here = regions.get(call.parent or "", "")
        elif runs_again(call):
            here = region(call)
        else:
            continue
        for p in call.flat_args:
            if p.name in makers and region(makers[p.name]) != here and _may_be_saved(p):
                yield p


def _kept(joint: Trace, keeps_state: Callable[[BoundSymbol], bool]) -> Iterator[Proxy]:
    """Yield the results of calls in regions for which an executor keeps state."""
    for call in joint.calls:
        if runs_again(call) and keeps_state(call):
            yield from call.defined()


def runs_again(call: BoundSymbol) -> bool:
    """Check that ``call`` is in a checkpointed region and runs again in the backward."""
    again = "RECOMPUTE" in call.tags or "PREFER_RECOMPUTE" in call.tags
    return again and "BACKWARD" not in call.tags and "CHECKPOINT" in call.tags


def region(call: BoundSymbol) -> str:
    """The outermost region that ``call`` is in: nested regions run again with it."""
    return str(call.tags.get("CHECKPOINT", "")).partition(".")[0]


def _may_be_saved(p: Proxy) -> bool:
    return p.tags.keys().isdisjoint(("RECOMPUTE", "DONT_SAVE_FOR_BACKWARD"))

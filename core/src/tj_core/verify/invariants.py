"""The invariants of stages, which hold from each stage on.

A trace keeps the invariants of all stages that it has reached. `tj_core.verify.verifier` checks
them after every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from tj_core.analysis.liveness import value_names
from tj_core.ir.stage import Stage
from tj_core.ir.tags import OF_BACKWARD

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["INVARIANTS", "Broken"]

Broken = Iterator[tuple[int, str]]
"""Indices of calls, each with a message; the index after the last call is the return."""


def _acquired(trace: Trace) -> Broken:
    """Every call has a value for each key of the trace's context."""
    for position, call in enumerate(trace.calls):
        if problem := _lost_context(trace, call):
            yield position, problem


def _lost_context(trace: Trace, call: BoundSymbol) -> str | None:
    lost = {key for key, _ in trace.context.items} - {key for key, _ in call.context.items}
    if lost:
        return f"lost the context {', '.join(sorted(lost))}"
    for subprogram in call.subprograms:
        for inner in subprogram.program.calls:
            if problem := _lost_context(subprogram.program, inner):
                return f"has a subprogram {subprogram.name!r} in which {inner.symbol} {problem}"
    return None


def _functional(trace: Trace) -> Broken:
    """No call mutates anything but inputs whose old value is not used afterwards.

    A claimed call that returns the written input as its output may stand anywhere; calls that copy
    values back to inputs are the last of the program, so that only the caller sees the writes.
    """
    inputs = {p.name for p in trace.inputs}
    mutated: set[str] = set()
    overwritten: set[str] = set()
    for position, call in enumerate(trace.calls):
        if not overwritten.isdisjoint(p.name for p in call.flat_args):
            yield position, "uses an input that was overwritten"
        if call.effects.copies_back:
            target, *values = (p.name for p in call.flat_args)
            if target not in inputs or mutated & {target, *values}:
                yield position, "copies back to no input, or uses one that was copied back to"
            mutated.add(target)
        elif call.effects.mutates and not call.effects.rebinds:
            targets = _returned(call)
            if targets is None or not targets <= inputs:
                yield position, "mutates"
            else:
                overwritten |= targets
        elif call.effects.rebinds:
            yield position, "mutates"
        elif mutated:
            yield position, "comes after a value was copied back to an input"
    if (mutated | overwritten) & value_names(trace.outputs):
        yield len(trace.calls), "the program returns an input that was copied back to"


def _returned(call: BoundSymbol) -> set[str] | None:
    """The names of the arguments that a claimed call writes, if all are returned; else None."""
    effects, args = call.effects, call.flat_args
    returned = {a.index for a in effects.aliases if a.kind == "arg"}
    if not call.executor or not returned >= set(effects.mutates):
        return None
    return {args[i].name for i in effects.mutates}


def _joint(trace: Trace) -> Broken:
    """The forward uses neither tangents nor gradients."""
    backward = {p.name for p in trace.inputs if OF_BACKWARD in p.tags}
    for position, call in enumerate(trace.calls):
        if OF_BACKWARD in call.tags:
            backward.update(p.name for p in call.defined())
        elif not backward.isdisjoint(p.name for p in call.flat_args):
            yield position, "belongs to the forward, and uses a value of the backward"


def _split(trace: Trace) -> Broken:
    """A program that takes no tangents has no call of the backward."""
    if any(OF_BACKWARD in p.tags for p in trace.inputs):
        return
    for position, call in enumerate(trace.calls):
        if OF_BACKWARD in call.tags:
            yield position, "belongs to the backward, and stands in the forward"


def _claimed(trace: Trace) -> Broken:
    """Every call belongs to an executor."""
    for position, call in enumerate(trace.calls):
        if problem := _unowned(call):
            yield position, problem


def _unowned(call: BoundSymbol) -> str | None:
    if not call.executor:
        return "belongs to no executor"
    for subprogram in call.subprograms:
        for inner in subprogram.program.calls:
            if problem := _unowned(inner):
                return f"has a subprogram {subprogram.name!r} in which {inner.symbol} {problem}"
    return None


INVARIANTS: Mapping[Stage, Callable[[Trace], Broken]] = {
    Stage.ACQUIRED: _acquired,
    Stage.FUNCTIONAL: _functional,
    Stage.JOINT: _joint,
    Stage.SPLIT: _split,
    Stage.CLAIMED: _claimed,
}
"""The check of each stage's invariant.

LOWERED has none: calls on tensor subclasses stay where an executor claims them, where they have no
body, and where the transform of the stage leaves the whole program to PyTorch's autograd.
"""

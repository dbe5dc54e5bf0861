"""The transform: products of a loop's steps, as one product where that is possible."""

from __future__ import annotations

from collections import Counter

from tj_core.extend import (
    BoundSymbol,
    PassContext,
    Stage,
    Trace,
    TraceEditor,
    Transform,
    can_inline,
    dce,
)

from tj_inductor.joined.chains import chains
from tj_inductor.joined.editing import Edit
from tj_inductor.joined.facts import FEWEST, PRODUCTS, Facts, is_plain
from tj_inductor.joined.scattered import join_scattered
from tj_inductor.joined.shared import join_shared
from tj_inductor.joined.sums import join_sums

__all__ = ["joining"]


def joining() -> Transform:
    """Make the transform.

    It comes when forward and backward are apart: what a joint program saves is chosen before, and
    a sum of gradients is a call.
    """
    return Transform("inductor-joined", _joined, after=Stage.SPLIT, falls_back=True)


def _joined(trace: Trace, context: PassContext) -> Trace:
    if trace.stage < Stage.SPLIT:  # PyTorch's autograd differentiates what runs
        return trace
    facts = Facts(trace)
    if facts.mutated:
        return trace
    edit = Edit(trace, context)
    join_scattered(facts, edit)
    if edit.instead:
        trace = dce(edit.done())
        facts = Facts(trace)
    found = _candidates(facts)
    if not found:
        return trace
    opened = Facts(_opened(trace, context, found))
    edit = Edit(opened.trace, context)
    join_sums(opened, edit)
    join_shared(opened, edit)
    return edit.done() if edit.instead else trace


def _candidates(facts: Facts) -> set[str]:
    """The labels of calls with products that other calls may share an operand or a sum with."""
    bodies: dict[int, bool] = {}
    calls = [call for call in facts.trace.calls if _multiplies(call, bodies)]
    if len(calls) < FEWEST:
        return set()
    read = [(call, facts.operand(p)) for call in calls for p in call.flat_args if is_plain(p)]
    uses = Counter(operand.root for _, operand in read)
    found = {call.label for call, operand in read if uses[operand.root] >= FEWEST}
    labels = {call.label for call in calls}
    for _, summands in chains(facts):
        made = [facts.makers[p.name] for p in summands if p.name in facts.makers]
        inside = {call.label for call in made} & labels
        if len(inside) >= FEWEST:
            found |= inside
    return found


def _multiplies(call: BoundSymbol, bodies: dict[int, bool]) -> bool:
    """Check for a product, or a call with one in its body; ``bodies`` are answers by id."""
    if call.symbol.qualname in PRODUCTS:
        return True
    body = call.body
    if body is None:
        return False
    if id(body) not in bodies:
        bodies[id(body)] = any(_multiplies(inner, bodies) for inner in body.calls)
    return bodies[id(body)]


def _opened(trace: Trace, context: PassContext, labels: set[str]) -> Trace:
    """``trace`` with the bodies of the calls ``labels`` in their places, down to products."""
    editor = TraceEditor(trace, context.tags)
    bodies: dict[int, bool] = {}

    def put(call: BoundSymbol) -> None:
        if call.symbol.qualname in PRODUCTS or not _multiplies(call, bodies):
            editor.append(call)
        elif can_inline(call):
            start = len(editor.calls)
            inlined = editor.inlined(call)
            for inner in inlined.calls:
                put(editor.moved(inner))
            editor.stands_for(call, start, inlined.values)
        else:
            editor.append(call)

    for call in trace.calls:
        moved = editor.moved(call)
        put(moved) if call.label in labels else editor.append(moved)
    return editor.done()

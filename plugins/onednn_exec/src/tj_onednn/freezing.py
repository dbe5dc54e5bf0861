"""Frozen parameters: the inputs of a program that are weights of layers.

Compilation finds the inputs, if the program takes no gradients. The first call finds which of them
are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    Outcome,
    PassContext,
    Stage,
    Tag,
    TagSet,
    Trace,
    TraceEditor,
    Transform,
)

from tj_onednn.executor import FROZEN, PackedExecutor
from tj_onednn.layers import takes_gradients, weights_of

if TYPE_CHECKING:
    from tj_onednn.packing import Frozen, Weights

__all__ = ["freezing", "tag"]


def tag() -> Tag:
    """Make the tag of inputs that are weights of layers."""
    said = "the weight of a layer; if it is a parameter, it is not written any more"
    return Tag(FROZEN, said, carriers=frozenset({"proxy"}))


def freezing() -> Transform:
    """Make the pass that tags these inputs in a program without gradients."""
    return Transform("onednn-freeze", _apply, after=Stage.ACQUIRED)


def _apply(trace: Trace, context: PassContext) -> Trace | Outcome:
    weights = next((e.weights for e in context.executors if isinstance(e, PackedExecutor)), None)
    names = {name for call in trace.calls for name in weights_of(call)}
    places = [i for i, p in enumerate(trace.inputs) if p.name in names]
    # An optimizer writes to the weights of a program that trains. A package owns its weights, and
    # has no text for what holds them: its products are those of plain weights.
    if weights is None or takes_gradients(trace) or not places or context.complete:
        return trace
    editor = TraceEditor(trace, context.tags)
    editor.append(*trace.calls)
    for i in places:
        editor.inherit(trace.inputs[i], TagSet([FROZEN]))
    return context.wrap(editor.done(), lambda function, _: _held(function, weights, places))


def _held(
    function: Callable[..., Any], weights: Weights, places: Sequence[int]
) -> Callable[..., Any]:
    """Wrap ``function``, to hold the parameters of its first call as frozen ``weights``."""
    held: list[Sequence[Frozen]] = []

    def run(*inputs: Any) -> Any:
        if not held:
            given = (inputs[i] for i in places)
            # A weight that the user passes as an argument is no parameter: it may be written
            # between calls.
            held.append(weights.hold(x for x in given if isinstance(x, torch.nn.Parameter)))
        return function(*inputs)

    return run

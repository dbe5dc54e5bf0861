"""The segments that make views which are returned: they run where PyTorch's autograd sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tj_core.extend import Proxy, Trace, TraceEditor, generate

from tj_autograd.joint.segments import Cut

__all__ = ["Views", "views"]


@dataclass(frozen=True, slots=True)
class Views:
    """Makes the views of one segment, ``outputs``, of ``inputs``."""

    program: Callable[..., Any]
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]


def views(functional: Trace, cut: Cut, index: int) -> Views:
    """Those of the segment at ``index`` in ``cut`` of ``functional``."""
    calls = tuple(c for c in functional.calls if cut.segments.get(c.label) == index)
    made = {p.name for call in calls for p in call.flat_outs}
    taken = {p.name: p for call in calls for p in call.flat_args if p.name not in made}
    inputs, outputs = tuple(taken.values()), cut.outputs[index]
    editor = TraceEditor(functional)
    editor.keep(*calls)
    trace = editor.done(inputs=inputs, outputs=outputs, name="views")
    return Views(generate(trace).function, inputs, outputs)

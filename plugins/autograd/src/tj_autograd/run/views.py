"""Segments that make returned views or write arguments; they run where autograd sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.extend import BoundSymbol, Proxy, Symbol, Trace, TraceEditor, generate
from tj_torch.internal import COPIED_BACK

if TYPE_CHECKING:
    from tj_autograd.joint.segments import Cut

__all__ = ["Views", "views"]


@dataclass(frozen=True, slots=True)
class Views:
    """Program that makes the views of one segment, and writes arguments: ``outputs`` from
    ``inputs``.
    """

    program: Callable[..., Any]
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]


def views(functional: Trace, cut: Cut, index: int) -> Views:
    """Make the program of the segment at ``index`` in ``cut`` of ``functional``."""
    known = {p.name: p for p in functional.inputs}
    mine = _with_views(functional, cut, index)
    calls = tuple(_writing(c, known) if c.symbol == COPIED_BACK else c for c in mine)
    made = {p.name for call in calls for p in call.flat_outs}
    taken = {p.name: p for call in calls for p in call.flat_args if p.name not in made}
    inputs, outputs = tuple(taken.values()), cut.outputs[index]
    editor = TraceEditor(functional)
    editor.append(*calls)
    trace = editor.done(inputs=inputs, outputs=outputs, name="views")
    return Views(generate(trace).function, inputs, outputs)


def _with_views(functional: Trace, cut: Cut, index: int) -> list[BoundSymbol]:
    """The calls of the segment at ``index``, and those that no segment has.

    A view that is made without gradients is in none, and requires a gradient if its base does.
    """
    there = {p.name for p in (*functional.inputs, *cut.taken(index))}
    needed: set[str] = set()
    found = []
    for call in reversed(functional.calls):
        own = cut.segments.get(call.label) == index
        if own or not needed.isdisjoint(p.name for p in call.flat_outs):
            found.append(call)
            needed.update(p.name for p in call.flat_args if p.name not in there)
    return found[::-1]


def _writing(call: BoundSymbol, known: Mapping[str, Proxy]) -> BoundSymbol:
    """The call that performs the write that ``call`` stands for."""
    value, name, count = call.args
    return call.replace(
        symbol=Symbol("tj", "write_back"), args=(value, known[name], count), body=None
    )

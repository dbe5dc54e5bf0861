"""SPLIT: a joint trace becomes a forward and a backward, with what the one saves for the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.proxy import Proxy
from tj_core.stages import Stage
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace
from tj_core.tree import leaves

from tj_autograd.detached import detached

__all__ = ["Halves", "is_backward", "split"]


@dataclass(frozen=True, slots=True)
class Halves:
    """The two programs of a joint trace.

    ``forward`` takes the inputs and returns three tuples: the ``roots``, which are the outputs that
    have a tangent; the ``rest`` of what the program returns; the ``saved`` values. ``backward``
    takes the saved values and the tangents and returns the gradients of the inputs. ``outputs`` is
    what the user's program returns, over inputs, roots and rest.
    """

    forward: Trace
    backward: Trace
    outputs: Any
    roots: tuple[Proxy, ...]
    rest: tuple[Proxy, ...]
    saved: tuple[Proxy, ...]
    tangents: tuple[Proxy, ...]


def split(joint: Trace) -> Halves:
    """The halves of ``joint``; what the backward reads of the forward is saved."""
    outputs, gradients = joint.outputs
    inputs = tuple(p for p in joint.inputs if not is_backward(p))
    tangents = tuple(p for p in joint.inputs if is_backward(p))
    back = _live([c for c in joint.calls if is_backward(c)], gradients)
    saved = tuple(_read(back, gradients, {p.name for p in tangents}))
    roots, rest = _returned(outputs, inputs)
    forward = joint.replace(
        inputs=inputs,
        calls=tuple(c for c in joint.calls if not is_backward(c)),
        outputs=(roots, rest, saved),
        stage=Stage.SPLIT,
    )
    backward = joint.replace(
        inputs=(*saved, *tangents),
        calls=tuple(back),
        outputs=gradients,
        name="backward",
        stage=Stage.SPLIT,
    )
    return Halves(detached(forward), detached(backward), outputs, roots, rest, saved, tangents)


def is_backward(carrier: Proxy | BoundSymbol) -> bool:
    """Whether a value or a call belongs to the backward."""
    return "BACKWARD" in carrier.tags


def _returned(outputs: Any, inputs: Sequence[Proxy]) -> tuple[tuple[Proxy, ...], tuple[Proxy, ...]]:
    """The distinct outputs that are no inputs: those that require a gradient, and others."""
    known = {p.name for p in inputs}
    found = {p.name: p for p in leaves(outputs) if isinstance(p, Proxy) and p.name not in known}
    carrying = [p for p in found.values() if getattr(p, "requires_grad", False)]
    others = [p for p in found.values() if not getattr(p, "requires_grad", False)]
    return tuple(carrying), tuple(others)


def _live(calls: Sequence[BoundSymbol], gradients: object) -> list[BoundSymbol]:
    """The calls that ``gradients`` depend on, and those with effects."""
    wanted = {p.name for p in leaves(gradients) if isinstance(p, Proxy)}
    kept = []
    for call in reversed(calls):
        if call.effects.removable and wanted.isdisjoint(p.name for p in call.flat_outs):
            continue
        kept.append(call)
        wanted.update(p.name for p in call.flat_args)
    return kept[::-1]


def _read(calls: Sequence[BoundSymbol], gradients: object, known: set[str]) -> Iterator[Proxy]:
    """The values that the backward uses and does not make, each once, in order of first use."""
    seen = set(known)
    for call in calls:
        for p in call.flat_args:
            if p.name not in seen:
                seen.add(p.name)
                yield p
        seen.update(p.name for p in call.flat_outs)
    for p in leaves(gradients):
        if isinstance(p, Proxy) and p.name not in seen:
            seen.add(p.name)
            yield p

"""Division of a program into segments, by metadata and effects of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Constant,
    Device,
    Proxy,
    RuleTable,
    Symbol,
    TensorProxy,
    leaves,
    makes_views,
    requires_grad,
)
from tj_torch.extend import is_on

__all__ = ["Limits", "Segment", "segments"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of calls that one graph holds: indices from ``start`` to before ``stop``."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Calls that a graph on devices of ``kind`` cannot hold.

    ``waits`` is the table of operations that wait for the device.
    """

    kind: str
    waits: RuleTable[Any]

    def refusal(self, call: BoundSymbol) -> str | None:
        """Reason why no graph can hold ``call``; None if one can."""
        if call.subprograms:
            return "calls programs"
        if (reason := _of_effects(call)) is not None:
            return reason
        if is_on(call.context):  # what PyTorch casts there, it keeps for later calls of the user's
            return "runs under autocast"
        if call.on_subclass:
            return "is on a tensor subclass"
        if (reason := _of_results(call)) is not None:
            return reason
        for inner in call.walk():
            if (reason := self.of_values(inner) or self.of_operation(inner)) is not None:
                return reason
        if len({device.index for device in _devices(call)}) > 1:
            return "is on several devices"
        return None

    def of_values(self, call: BoundSymbol) -> str | None:
        """Reason why a graph cannot hold a value or tensor constant of ``call``; None if it can."""
        found = (self.of_value(p) for p in (*call.flat_args, *call.flat_outs))
        reason = next((r for r in found if r is not None), None)
        if reason is not None:
            return reason
        held = (x.value for x in leaves((call.args, call.kwargs)) if isinstance(x, Constant))
        kinds = {getattr(getattr(x, "device", None), "type", self.kind) for x in held}
        return None if kinds <= {self.kind} else f"reads a tensor on {min(kinds - {self.kind})}"

    def of_value(self, p: Proxy) -> str | None:
        """Reason why a graph cannot hold ``p``; None if it can."""
        if not isinstance(p, TensorProxy):
            return f"{p.name} is no tensor"
        if p.device.type != self.kind:
            return f"{p.name} is on {p.device.type}"
        if p.layout != "strided" or p.flags:
            return f"{p.name} is not a plain strided tensor"
        if not all(isinstance(n, int) for n in (*p.shape, *p.strides)):
            return f"{p.name} has sizes that are symbols"
        return None

    def of_operation(self, call: BoundSymbol) -> str | None:
        """Reason why the operation cannot be captured, in the dialect of any executor; None if it
        can.
        """
        # An executor's call has the operation's own name after the executor's.
        for symbol in (call.symbol, Symbol.parse(call.symbol.path)):
            rule = self.waits.get(symbol) if symbol.namespace else None
            if rule is not None and rule.value(call):
                return f"{symbol} waits for the device, or reads memory by its place"
        return None


def _of_effects(call: BoundSymbol) -> str | None:
    """Reason why no graph can hold what ``call`` does beside its results; None if one can."""
    effects = call.effects
    if effects.ordered:
        return f"has an effect that is ordered: {', '.join(effects.ordered)}"
    if effects.mutates or effects.rebinds or effects.copies_back:
        return "writes to a value of the program"
    return None


def _of_results(call: BoundSymbol) -> str | None:
    """Reason why no graph can hold the results of ``call`` as they are; None if one can."""
    if any(map(requires_grad, call.flat_outs)) and not makes_views(call):
        return "is recorded by PyTorch's autograd"
    shared = [a for a in call.effects.aliases if a.kind != "internal"]
    if shared and not makes_views(call):
        return "returns new memory and views"
    return None if call.flat_outs else "returns nothing"


def _devices(call: BoundSymbol) -> Iterator[Device]:
    values = (*call.flat_args, *call.flat_outs)
    return (p.device for p in values if isinstance(p, TensorProxy))


def segments(
    calls: Sequence[BoundSymbol], refused: Sequence[str | None], minimum: int
) -> Iterator[Segment]:
    """Yield the longest runs of ``calls`` on one device, none of which is ``refused``.

    Runs with fewer than ``minimum`` calls that compute are left out.
    """
    start = 0
    while start < len(calls):
        stop = start
        device = set(_devices(calls[start]))
        while stop < len(calls) and refused[stop] is None and device == set(_devices(calls[stop])):
            stop += 1
        if sum(not makes_views(call) for call in calls[start:stop]) >= minimum:
            yield Segment(start, stop)
        start = max(stop, start + 1)

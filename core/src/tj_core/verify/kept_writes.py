"""Comparison of a pass's trace with the one before: no write to memory is forgotten.

A call that writes may be replaced by others that write, or removed where nobody reads the memory
again. One without effects in its place computes the new value, and leaves the old one in memory.
From FUNCTIONAL on, calls return new values and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tj_core.analysis.liveness import value_names
from tj_core.errors import VerificationError
from tj_core.ir.stage import Stage

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["check_writes"]


def check_writes(before: Trace, after: Trace) -> None:
    """Check that each write in ``before`` is in ``after``, which a pass has made of it.

    :raises VerificationError: with the call whose write is lost.
    """
    if after.stage >= Stage.FUNCTIONAL:
        return
    writing = [call for call in before.calls if call.effects.mutates]
    if not writing:
        return
    kept = {name for call in after.calls if call.effects.mutates for name in _names(call)}
    read = set(_read(after))
    for call in writing:
        if not kept.isdisjoint(_names(call)):
            continue
        targets = {call.flat_args[i].name for i in call.effects.mutates}
        if read.isdisjoint(targets | value_names(call.outputs)):
            continue
        now = [c for c in after.calls if not {*_names(c)}.isdisjoint(_names(call))]
        instead = f"{', '.join(str(c.symbol) for c in now)} does not" if now else "nothing does"
        raise VerificationError(
            f"after {after.history[-1].name}: call {call.label!r} ({call.symbol}) wrote to "
            f"{', '.join(map(repr, sorted(targets)))}, and {instead}: the old value stays in "
            "memory",
            source=call.source,
            hint="put a call in its place that writes, or rewrite after stage FUNCTIONAL, where "
            "calls return new values",
        )


def _names(call: BoundSymbol) -> Iterator[str]:
    """Names by which a call that stands for another is known: its own, and its parent's."""
    yield call.label
    if call.parent is not None:
        yield call.parent


def _read(trace: Trace) -> Iterator[str]:
    yield from (p.name for p in trace.inputs)
    for call in trace.calls:
        yield from (p.name for p in call.flat_args)
    yield from value_names(trace.outputs)

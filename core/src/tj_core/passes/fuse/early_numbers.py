"""Numbers that a program reads from small tensors, computed before its groups.

An optimizer counts its steps in tensors, and reads each count where it updates that parameter. A
group cannot reach across a number that it needs and that needs a value of the group, so that each
parameter would have a region of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tj_core.analysis.liveness import live_calls
from tj_core.ir.proxy import NumberProxy, TensorProxy
from tj_core.passes.fuse.groups import is_barrier

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol

__all__ = ["numbers_first"]


def numbers_first(calls: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """``calls`` with those first that make numbers or check them.

    Numbers that depend on tensors with dimensions stay where they are. No call passes a call that
    writes or is a side effect, but for checks of numbers, which keep their order among each other.
    """
    late: set[str] = set()
    wanted: set[int] = set()
    for i, call in enumerate(calls):
        check = _checks_numbers(call)
        if is_barrier(call) and not check:
            break
        values = (*call.flat_args, *call.flat_outs)
        single = all(_is_single(p) and p.name not in late for p in values)
        if single and check:
            wanted.add(i)
        elif check:  # later checks must not pass it
            break
        elif not (single and call.effects.removable):
            late.update(p.name for p in call.flat_outs)
        elif _makes_numbers(call):
            wanted.add(i)
    first = live_calls(calls, (), lambda i, _: i in wanted)
    if not first:
        return list(calls)
    # Checks let nothing pass: what is computed on tensors comes before them, as one group.
    tensors: list[BoundSymbol] = []
    numbers: list[BoundSymbol] = []
    read: set[str] = set()
    for call in (calls[i] for i in first):
        after = not call.flat_outs or _makes_numbers(call)
        if after or any(p.name in read for p in call.flat_args):
            read.update(p.name for p in call.flat_outs)
            numbers.append(call)
        else:
            tensors.append(call)
    moved = set(first)
    return [*tensors, *numbers, *(call for i, call in enumerate(calls) if i not in moved)]


def _is_single(p: Any) -> bool:
    """Test for a number, or a tensor of one."""
    return isinstance(p, NumberProxy) or (isinstance(p, TensorProxy) and not p.shape)


def _makes_numbers(call: BoundSymbol) -> bool:
    """Test for a call that reads numbers from tensors, or computes some."""
    return bool(call.flat_outs) and all(isinstance(p, NumberProxy) for p in call.flat_outs)


def _checks_numbers(call: BoundSymbol) -> bool:
    """Test for a call that does nothing but refuse numbers."""
    effects = call.effects
    acts = effects.mutates or effects.rebinds or effects.ordered != ("side_effect",)
    numbers = all(isinstance(p, NumberProxy) for p in call.flat_args)
    return not (acts or call.flat_outs) and bool(call.flat_args) and numbers

"""Numbers that a program reads from small tensors, computed before its groups.

An optimizer counts its steps in tensors, and reads each count where it updates that parameter. A
group cannot reach across a number that it needs and that needs a value of the group, so that each
parameter would have a region of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    makers = {p.name: i for i, call in enumerate(calls) for p in call.flat_outs}
    cheap: set[int] = set()
    first: set[int] = set()
    for i, call in enumerate(calls):
        check = _checks_numbers(call)
        if is_barrier(call) and not check:
            break
        known = all(makers[p.name] in cheap for p in call.flat_args if p.name in makers)
        if not (known and all(map(_is_single, (*call.flat_args, *call.flat_outs)))):
            if check:  # later checks must not pass it
                break
            continue
        if not (check or call.effects.removable):
            continue
        cheap.add(i)
        if check or _makes_numbers(call):
            first |= _needed(i, calls, makers, first)
    if not first:
        return list(calls)
    # Checks let nothing pass: what is computed on tensors comes before them, as one group.
    tensors = _on_tensors(sorted(first), calls, makers)
    order = sorted(first, key=lambda i: (i not in tensors, i))
    rest = (call for i, call in enumerate(calls) if i not in first)
    return [*(calls[i] for i in order), *rest]


def _on_tensors(
    places: Sequence[int], calls: Sequence[BoundSymbol], makers: dict[str, int]
) -> set[int]:
    """The places of calls that make tensors, and need no numbers that others of them make."""
    found: set[int] = set()
    for i in places:
        needed = (makers[p.name] for p in calls[i].flat_args if p.name in makers)
        makes = bool(calls[i].flat_outs) and not _makes_numbers(calls[i])
        if makes and found.issuperset(needed):
            found.add(i)
    return found


def _needed(
    place: int, calls: Sequence[BoundSymbol], makers: dict[str, int], known: set[int]
) -> set[int]:
    """``place``, and the places of the calls that it needs, but for those ``known``."""
    found: set[int] = set()
    waiting = [place]
    while waiting:
        i = waiting.pop()
        if i not in known and i not in found:
            found.add(i)
            waiting += [makers[p.name] for p in calls[i].flat_args if p.name in makers]
    return found


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

"""Which values the gradients of a program depend on, themselves and not by their metadata alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tj_core.extend import (
    Body,
    BoundSymbol,
    Proxy,
    RuleTable,
    TensorProxy,
    Trace,
    leaves,
    live_items,
    value_names,
)

from tj_autograd.joint.build import carries
from tj_autograd.run.reads import Reads, values_read

__all__ = ["depended", "depended_once_more"]

BY_PYTORCH = frozenset({"derived", "its own backward"})
"""Gradients that read what PyTorch's autograd reads."""


def depended(
    joint: Trace, gradients: object, taken: Iterable[str], table: RuleTable[Reads]
) -> frozenset[str]:
    """The values that ``gradients`` are functions of, in ``joint`` or under PyTorch's autograd.

    Those that are ``taken`` from elsewhere are not followed to what they are made of. What a
    gradient of somebody else's reads says nothing about what PyTorch's own does, so arguments of
    such calls count all. ``table`` says what calls read.
    """
    changes = (change for record in joint.history for change in record.changes)
    others = {c.call for c in changes if c.plugin != "autograd" or c.rule not in BY_PYTORCH}

    def more(call: BoundSymbol) -> bool:
        return call.label in others and carries(call)

    names = [p.name for p in leaves(gradients) if isinstance(p, Proxy)]

    def read(call: BoundSymbol, wanted: set[str]) -> Iterator[str]:
        return _reads(call, wanted, table)

    return frozenset(_ancestors(joint.calls, names, more, read, frozenset(taken)))


def depended_once_more(
    again: Trace, known: frozenset[str], table: RuleTable[Reads]
) -> frozenset[str]:
    """The values whose own matters where ``again`` runs under PyTorch's autograd.

    Those in ``known`` do. So do arguments of calls that carry no gradient, and indices: calls may
    refuse other values than those they are written for. ``table`` says what calls read.
    """

    def more(call: BoundSymbol) -> bool:
        return not carries(call) and bool(values_read(call, table))

    indices = {p.name for call in again.calls for p in call.flat_args if _is_index(p)}

    def read(call: BoundSymbol, wanted: set[str]) -> list[str]:
        return [p.name for p in values_read(call, table)]

    return frozenset(_ancestors(again.calls, known | indices, more, read))


def _is_index(p: Proxy) -> bool:
    """Whether ``p`` may be what a call looks elements up by."""
    return isinstance(p, TensorProxy) and p.dtype.kind in ("int", "uint")


def _ancestors(
    calls: Sequence[BoundSymbol],
    wanted: Iterable[str],
    more: Callable[[BoundSymbol], bool],
    reads: Callable[[BoundSymbol, set[str]], Iterable[str]],
    taken: frozenset[str] = frozenset(),
) -> set[str]:
    """``wanted`` and all that the calls that make them read, and those that there are ``more``."""

    def read(call: BoundSymbol, found: set[str]) -> Iterable[str] | None:
        if more(call):
            return value_names(call.flat_args)
        if any(p.name in found and p.name not in taken for p in call.flat_outs):
            return list(reads(call, found))
        return None

    found = set(wanted)
    live_items(calls, found, read)
    return found


def _reads(call: BoundSymbol, wanted: set[str], table: RuleTable[Reads]) -> Iterator[str]:
    """The arguments that the ``wanted`` ones among the results of ``call`` depend on."""
    found = {p.name for p in values_read(call, table)}
    arguments = list({p.name: None for p in call.flat_args})
    inner = None if call.body is None or call.regions else _inside(call, call.body, wanted, table)
    if inner is None:
        yield from (name for name in arguments if name in found)
    else:
        pairs = zip(arguments, call.body.inputs, strict=True)  # type: ignore[union-attr]
        yield from (name for name, p in pairs if p.name in inner and name in found)


def _inside(
    call: BoundSymbol, body: Body, wanted: set[str], table: RuleTable[Reads]
) -> set[str] | None:
    """What the ``wanted`` results depend on in ``body``; None if it says not how all are made."""
    results = [p for p in leaves(body.outputs) if isinstance(p, Proxy)]
    if len(results) != len(call.flat_outs):  # what a call has written has no place there
        return None
    pairs = zip(results, call.flat_outs, strict=True)
    names = [p.name for p, out in pairs if out.name in wanted]

    def read(part: BoundSymbol, found: set[str]) -> Iterator[str]:
        return _reads(part, found, table)

    return _ancestors(body.calls, names, lambda _: False, read)

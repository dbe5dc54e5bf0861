"""Values that the gradients of a program depend on by their elements, not only by metadata."""

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
"""Rules whose gradients read the same values as PyTorch's autograd does."""


def depended(
    joint: Trace, gradients: object, taken: Iterable[str], table: RuleTable[Reads]
) -> frozenset[str]:
    """Names of the values that ``gradients`` depend on, in ``joint`` or under PyTorch's autograd.

    Values in ``taken`` come from another segment and are not followed to their arguments. A
    plugin's gradient may read other values than PyTorch's own, so all arguments of such calls
    count. ``table`` gives the values that calls read.
    """
    changes = (change for record in joint.history for change in record.changes)
    others = {c.call for c in changes if c.plugin != "autograd" or c.rule not in BY_PYTORCH}

    def more(call: BoundSymbol) -> bool:
        # Its gradient under PyTorch's autograd is another one than in the trace.
        return call.label in others and carries(call)

    names = [p.name for p in leaves(gradients) if isinstance(p, Proxy)]

    def read(call: BoundSymbol, wanted: set[str]) -> Iterator[str]:
        return _reads(call, wanted, table)

    return frozenset(_ancestors(joint.calls, names, more, read, frozenset(taken)))


def depended_once_more(
    again: Trace, known: frozenset[str], table: RuleTable[Reads]
) -> frozenset[str]:
    """Names of the values that matter where ``again`` runs under PyTorch's autograd.

    These are the values in ``known``, arguments of calls that carry no gradient, and indices: calls
    may refuse zeros in place of these. ``table`` gives the values that calls read.
    """

    def more(call: BoundSymbol) -> bool:
        return not carries(call) and bool(values_read(call, table))

    indices = {p.name for call in again.calls for p in call.flat_args if _is_index(p)}

    def read(call: BoundSymbol, wanted: set[str]) -> list[str]:
        return [p.name for p in values_read(call, table)]

    return frozenset(_ancestors(again.calls, known | indices, more, read))


def _is_index(p: Proxy) -> bool:
    """Check that ``p`` may be an index: a tensor of integers."""
    return isinstance(p, TensorProxy) and p.dtype.kind in ("int", "uint")


def _ancestors(
    calls: Sequence[BoundSymbol],
    wanted: Iterable[str],
    more: Callable[[BoundSymbol], bool],
    reads: Callable[[BoundSymbol, set[str]], Iterable[str]],
    taken: frozenset[str] = frozenset(),
) -> set[str]:
    """Transitive inputs of ``wanted``, plus all inputs of calls for which ``more`` holds."""

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
    """Arguments that the ``wanted`` results of ``call`` depend on."""
    found = {p.name for p in values_read(call, table)}
    arguments = list({p.name: None for p in call.flat_args})
    inner = (
        None if call.body is None or call.subprograms else _inside(call, call.body, wanted, table)
    )
    if inner is None:
        yield from (name for name in arguments if name in found)
    else:
        pairs = zip(arguments, call.body.inputs, strict=True)  # type: ignore[union-attr]
        yield from (name for name, p in pairs if p.name in inner and name in found)


def _inside(
    call: BoundSymbol, body: Body, wanted: set[str], table: RuleTable[Reads]
) -> set[str] | None:
    """Values of ``body`` that the ``wanted`` results depend on; None if it does not return all
    results.
    """
    results = [p for p in leaves(body.outputs) if isinstance(p, Proxy)]
    if len(results) != len(call.flat_outs):  # new values of written arguments are not among them
        return None
    pairs = zip(results, call.flat_outs, strict=True)
    names = [p.name for p, out in pairs if out.name in wanted]

    def read(part: BoundSymbol, found: set[str]) -> Iterator[str]:
        return _reads(part, found, table)

    return _ancestors(body.calls, names, lambda _: False, read)

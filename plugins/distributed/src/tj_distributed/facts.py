"""Facts of collectives for rule tables: those that may run again, and what each one starts.

A gather only reads: it may run again in the backward, as in sharded training in eager, which
gathers parameters again instead of keeping them. The order of collectives in the backward is then
the program's, the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable

from tj_core.extend import BoundSymbol, RuleTable, Started, TensorProxy

from tj_distributed.sequence import PREFIX, TORCH_WAIT, described

__all__ = ["repeatable", "started"]

_GATHERS = ("all_gather_into_tensor", "all_gather_into_tensor_coalesced")
_OTHERS = (
    "all_gather_into_tensor_out", "all_reduce", "all_reduce_", "all_reduce_coalesced",
    "all_reduce_coalesced_", "all_to_all_single", "broadcast", "broadcast_",
    "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_out",
)  # fmt: skip


def repeatable() -> RuleTable[str]:
    """Make the rules of table ``repeatable``; their names are tj-autograd's."""
    table: RuleTable[str] = RuleTable("repeatable", rule_type=str)
    for name in _GATHERS:
        table.set(f"{PREFIX}{name}.default", "itself")
    table.set(TORCH_WAIT, "with its argument")
    return table


def started() -> RuleTable[Callable[[BoundSymbol], Started | None]]:
    """Make the rules of table ``starts``."""
    table: RuleTable[Callable[[BoundSymbol], Started | None]] = RuleTable(
        "starts", rule_type=Callable
    )
    for name in (*_GATHERS, *_OTHERS):
        table.set(f"{PREFIX}{name}.default", _started)
    return table


def _started(call: BoundSymbol) -> Started | None:
    found = described(call)
    tensors = [p for p in call.flat_args if isinstance(p, TensorProxy)]
    sizes = [_bytes(p) for p in tensors]
    known = [size for size in sizes if size is not None]
    size = sum(known) if len(known) == len(sizes) else None
    return Started(found.operation, found.group, size)


def _bytes(p: TensorProxy) -> int | None:
    found = max(1, p.dtype.bits // 8)
    for size in p.shape:
        if not isinstance(size, int):
            return None
        found *= size
    return found

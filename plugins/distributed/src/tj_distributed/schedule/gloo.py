"""Gathers on gloo that may be under way at once: table ``runs_as``.

When a collective has ended, gloo's thread writes its kind into a text of the group, without a lock
(``ProcessGroupGloo::runLoop``; seen with PyTorch 2.12 to 2.15). A group has two threads. If both
do so at once, they free the old text twice, and the process ends later with ``malloc(): unaligned
tcache chunk detected`` or the like. A kind of up to 15 characters stands inside of the text's
object, and nothing is freed. Of functional collectives, gathers alone have a longer one,
``ALLGATHER_COALESCED``: eager rarely has two under way, programs that start them early do. The
gather into a given tensor is an ``ALLGATHER``, with the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.extend import BoundSymbol, RuleTable, TensorProxy

from tj_distributed.sequence import PREFIX, described

if TYPE_CHECKING:
    import torch

__all__ = ["gathers"]

_Run = Callable[..., Any]


def gathers() -> RuleTable[Callable[[BoundSymbol], _Run | None]]:
    """Make the rules: those of the gathers that programs start early."""
    table: RuleTable[Callable[[BoundSymbol], _Run | None]] = RuleTable("runs_as")
    name = f"{PREFIX}all_gather_into_tensor"
    table.set(f"{name}.default", lambda call: _gather if _on_gloo(call) else None)
    table.set(f"{name}_coalesced.default", lambda call: _gather_each if _on_gloo(call) else None)
    return table


def _on_gloo(call: BoundSymbol) -> bool:
    from tj_distributed.adapter import is_on_gloo  # imports torch.distributed

    tensors = [p for p in call.flat_args if isinstance(p, TensorProxy)]
    plain = all(p.device.type == "cpu" and p.subclass is None for p in tensors)
    return plain and is_on_gloo(described(call).group)


def _gather(x: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """As ``all_gather_into_tensor``."""
    import torch

    from tj_distributed.adapter import gather_out

    first, rest = (x.shape[0], x.shape[1:]) if x.ndim else (1, ())
    made = x.new_empty((first * ranks, *rest))
    if x.is_complex():  # gloo has no complex numbers
        real = torch.view_as_real(x.resolve_conj())
        gather_out(real, ranks, group, torch.view_as_real(made))
    else:
        gather_out(x, ranks, group, made)
    return made


def _gather_each(xs: Sequence[torch.Tensor], ranks: int, group: str) -> list[torch.Tensor]:
    """As ``all_gather_into_tensor_coalesced``, which has no short name."""
    return [_gather(x, ranks, group) for x in xs]

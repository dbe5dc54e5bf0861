"""Refuse checkpoints that write to outer tensors, which eager does twice.

The backward's recomputation writes a second time; a functional program writes once, at its end.
"""

from __future__ import annotations

from tj_core.extend import BoundSymbol, CaptureError, requires_grad

from tj_torch.capture.higher_order.checkpoint import SYMBOL

__all__ = ["check_repeated"]


def check_repeated(call: BoundSymbol) -> None:
    """Check that ``call``, if it is a checkpoint with gradients, writes to none of its arguments.

    :raises CaptureError: if it does.
    """
    if str(call.symbol) != SYMBOL or call.context.get("grad") is False:
        return
    written = [call.flat_args[i].name for i in call.effects.mutates]
    if written and any(map(requires_grad, call.flat_outs)):
        raise CaptureError(
            f"a checkpoint writes to {', '.join(dict.fromkeys(written))}, "
            "and in its backward once more",
            source=call.source,
        )

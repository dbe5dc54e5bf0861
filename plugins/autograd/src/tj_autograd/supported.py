"""Which programs JOINT takes. All others run as they were acquired, under PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tj_core.proxy import Proxy, TensorProxy
from tj_core.records import Decline
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace

from tj_autograd.writes import harmful_write

__all__ = ["needs_gradient", "unsupported"]


def needs_gradient(trace: Trace) -> bool:
    """Whether a call makes a value that requires a gradient, or gives an argument such a value."""
    return any(_differentiable(p) for call in trace.calls for p in _made(call))


def _made(call: BoundSymbol) -> Iterator[Proxy]:
    yield from call.flat_outs
    for _, p in call.effects.rebinds:
        yield p


def _differentiable(p: object) -> bool:
    return isinstance(p, TensorProxy) and p.requires_grad


def unsupported(trace: Trace) -> Decline | None:
    """Why ``trace``, which needs a gradient, is left to PyTorch's autograd; None if it is not."""
    harmful = harmful_write(trace)
    if harmful is not None:
        return Decline(f"{harmful.symbol} writes to an argument", harmful.source)
    for call in trace.calls:
        for reason, applies in _REASONS.items():
            if applies(call):
                return Decline(f"{call.symbol} {reason}", call.source)
    return None


def _draws_again(call: BoundSymbol) -> bool:
    return "CHECKPOINT" in call.tags and any(r.startswith("random") for r in call.effects.ordered)


_REASONS: dict[str, Callable[[BoundSymbol], object]] = {
    "changes the metadata of an argument": lambda call: call.effects.rebinds,
    "runs a region": lambda call: call.regions,
    "draws random numbers in a checkpointed region": _draws_again,
}
"""What the plugin cannot take apart, by what is said of it."""

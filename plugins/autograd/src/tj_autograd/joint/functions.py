"""Calls that bring their own backward: of a `torch.autograd.Function`, of a custom operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_core.extend import Body, BoundSymbol, Proxy, Symbol, TensorProxy, generate, leaves
from tj_core.internal import FORWARD
from tj_torch.internal import autograd_function

if TYPE_CHECKING:
    from tj_torch.extend import Derivation

__all__ = [
    "APPLY",
    "has_own_backward",
    "keeps_others",
    "plain_call",
    "with_own_body",
    "without_gradient",
]

APPLY = "tj.autograd_function"
"""Symbol of a captured Function call: the arguments follow its forward and backward."""


def has_own_backward(call: BoundSymbol) -> bool:
    """Test for a backward that users wrote: it runs, with zeros, even where no tangent arrives."""
    symbol = call.symbol
    ours = symbol.namespace == "torch" and symbol.name.startswith("ops.")
    return symbol.qualname == APPLY or (ours and not symbol.name.startswith("ops.higher_order."))


def keeps_others(call: BoundSymbol) -> str | None:
    """Reason why the backward of a Function may read what is written after its forward; else None.

    Version counters guard tensors given to `save_for_backward`. A tensor kept as an attribute of
    the context is read as it is when the backward runs.
    """
    forward = call.subprograms[0].program
    outputs, values = forward.outputs
    others = {p.name for p in (*forward.inputs, *leaves(outputs)) if isinstance(p, TensorProxy)}
    saved = dict(call.kwargs).get("saved", ())
    kept = (p for i, p in enumerate(values) if i not in saved and isinstance(p, Proxy))
    # An intermediate of the forward has no other name by which it could be written.
    found = next((p.name for p in kept if p.name in others), None)
    return f"it keeps {found} on its context, where it may be written" if found else None


def without_gradient(call: BoundSymbol) -> frozenset[int]:
    """Flat indices of the arguments for which the backward of a Function returns None."""
    gradients = call.subprograms[1].program.outputs
    return frozenset(i for i, gradient in enumerate(gradients) if gradient is None)


def plain_call(call: BoundSymbol) -> tuple[BoundSymbol, Callable[..., Any]]:
    """Make the call without its subprograms, and the Function made of them, which it runs.

    The positional arguments keep their order, so the call has the same flat arguments.
    """
    forward, backward, *args = call.args
    halves = [generate(subprogram.program).function for subprogram in (forward, backward)]
    symbol = Symbol("tj", "autograd_function", FORWARD)
    plain = call.replace(symbol=symbol, args=tuple(args), kwargs=(), parent=call.label)
    given = {name: value for name, value in call.kwargs if name != "reads"}
    return plain, functools.partial(autograd_function, *halves, **given)


def with_own_body(call: BoundSymbol, rule: Derivation) -> BoundSymbol:
    """Give ``call``, made by `plain_call`, the body that ``rule``
    derived: no name resolves to it.
    """
    body = rule.forward.body
    assert body is not None
    return call.replace(body=Body(body.inputs, body.calls, body.outputs[0], body.updates))

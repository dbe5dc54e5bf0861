"""Wiring of higher-order operations: the arguments, contexts and outputs of their operand graphs.

Rule table ``wiring``, open to plugins, maps a symbol to a `Wiring`. Calls of other higher-order
operations count as side effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import Context, RuleTable, leaves

from tj_torch.ops.context.entering import AUTOCAST

__all__ = ["MADE", "UNKNOWN", "WIRING", "Operands", "Wiring", "rules"]

WIRING = "wiring"
"""Name of the rule table."""

Operands = list[Any]
"""Operands for the inputs of a subprogram: leaves of the call's arguments, or `MADE`."""

MADE = object()
"""Mark of a subprogram's input that the operation computes: an element, a tangent, an index."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Relation of an operation to its subprograms.

    ``names`` are the names of its subprograms; ``operands`` maps the call's arguments and ``n`` to
    the operands of the n-th subprogram. ``returns`` names the subprograms whose outputs are the
    call's. ``carried`` gives the arguments that the leading outputs may be (of a loop that never
    runs). ``context`` maps the call's context to that of the n-th subprogram. ``plain``: without
    gradients, the operation only calls its subprograms; others inspect the subprograms' operations,
    as ``flex_attention``, which vectorizes them over the scores. ``once``: it only calls its single
    subprogram once, so that the subprogram can be inlined.
    """

    names: tuple[str, ...]
    operands: Callable[[tuple[Any, ...], int], Operands]
    returns: tuple[str, ...] = ()
    carried: Callable[[tuple[Any, ...]], Operands] = lambda args: []
    context: Callable[[Context, tuple[Any, ...], int], Context] = lambda context, args, n: context
    plain: bool = False
    once: bool = False

    @property
    def known(self) -> bool:
        """True unless the operation is unknown."""
        return self is not UNKNOWN


def _rest(start: int) -> Callable[[tuple[Any, ...], int], Operands]:
    return lambda args, n: list(leaves(args[start:]))


def _made(count: int, *more: Any) -> Operands:
    return [MADE] * count + list(leaves(more))


def _autocast(context: Context, args: tuple[Any, ...], n: int) -> Context:
    device, dtype, enabled, *_ = args
    key = AUTOCAST + str(device)
    if not enabled:
        return context if context.get(key) is None else context.with_(key, None)
    given = torch.get_autocast_dtype(str(device)) if dtype is None else dtype.value
    return context.with_(key, str(given).removeprefix("torch."))


def _of_function(context: Context, n: int) -> Context:
    """Context of a Function's forward (``n`` = 0) or backward, which runs outside of autocast.

    Grad mode is recorded as off, though a backward with ``create_graph`` runs with gradients on.
    """
    off = {k: None for k, v in context.items if n and k.startswith(AUTOCAST) and v}
    return Context.of(**off, grad=False).over(context)


_OP = "torch.ops.higher_order."

_WIRINGS = {
    "torch.utils.checkpoint.checkpoint": Wiring(("body",), _rest(1), ("body",), plain=True),
    "tj.invoke": Wiring(("body",), _rest(1), ("body",), plain=True, once=True),
    "tj.autograd_function": Wiring(
        ("forward", "backward"),
        lambda args, n: list(leaves(args[2:])) if n == 0 else [],
        ("forward",),
        context=lambda context, args, n: _of_function(context, n),
    ),
    _OP + "cond": Wiring(("true_fn", "false_fn"), _rest(3), ("true_fn", "false_fn"), plain=True),
    _OP + "while_loop": Wiring(
        ("cond_fn", "body_fn"), _rest(2), carried=lambda args: list(leaves(args[2])), plain=True
    ),
    _OP + "scan": Wiring(
        ("combine_fn",),
        lambda args, n: [*leaves(args[1]), *_made(len(args[2])), *leaves(args[3])],
        carried=lambda args: list(leaves(args[1])),
        plain=True,
    ),
    _OP + "associative_scan": Wiring(
        ("combine_fn",), lambda args, n: _made(2 * len(args[1]), *args[2:])
    ),
    _OP + "map_impl": Wiring(("fn",), lambda args, n: _made(len(args[1]), args[2]), plain=True),
    _OP + "flex_attention": Wiring(
        ("score_mod", "mask_mod"),
        lambda args, n: _made(5 - n, args[7 + n]) if len(args) > 8 else [],
    ),
    _OP + "wrap": Wiring(("body",), _rest(1), ("body",), plain=True, once=True),
    _OP + "strict_mode": Wiring(("body",), _rest(1), ("body",)),
    _OP + "hints_wrapper": Wiring(("body",), _rest(1), ("body",)),
    _OP + "wrap_with_autocast": Wiring(
        ("body",), _rest(5), ("body",), context=_autocast, plain=True, once=True
    ),
    _OP + "wrap_with_set_grad_enabled": Wiring(
        ("body",),
        _rest(2),
        ("body",),
        context=lambda context, args, n: context.with_("grad", bool(args[0])),
        plain=True,
        once=True,
    ),
}

UNKNOWN = Wiring((), lambda args, n: [])
"""Wiring of operations without a rule."""


def rules() -> RuleTable[Wiring]:
    """Wiring of PyTorch's higher-order operations."""
    table: RuleTable[Wiring] = RuleTable(WIRING, rule_type=Wiring)
    for name, wiring in _WIRINGS.items():
        table.set(name, wiring)
    return table

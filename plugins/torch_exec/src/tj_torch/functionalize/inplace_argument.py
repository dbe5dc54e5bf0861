"""``F.silu(h, inplace=True)`` as ``F.silu(h)``, whose value is that of ``h`` from there on.

Plugins' rules are for the public function. They also hold for the call that writes, if it computes
the same. `without_writing` decides this.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from tj_core.extend import BoundSymbol, Symbol, TensorProxy, TjError, bind_outputs, requires_grad

if TYPE_CHECKING:
    from collections.abc import Callable

    from tj_core.extend import Body, Expand, RuleTable

__all__ = [
    "OWN_GRADIENT",
    "SAVES_ARGUMENT",
    "saves_argument",
    "saves_what_it_writes",
    "without_writing",
]

OWN_GRADIENT = frozenset({"celu", "elu", "leaky_relu", "rrelu_with_noise"})
"""Operators whose in-place form has another gradient, computed from the result.

PyTorch's ``derivatives.yaml`` has an entry for ``elu_`` beside ``elu``: the last bits differ, and
with a negative slope ``leaky_relu_`` raises in backward. All other in-place operators have the
formula of the operator that writes nothing.
"""

SAVES_ARGUMENT = frozenset({"hardsigmoid", "hardswish", "hardtanh", "mish", "silu", "threshold"})
"""Operators whose gradient needs their argument; the in-place form saves a copy of it."""

PARAMETER = "inplace"
MUTATED = "mutated"
OWNERS = ("torch", "torch.nn.functional")


def without_writing(
    functional: BoundSymbol, function: Callable[..., Any], expand: RuleTable[Expand]
) -> BoundSymbol | None:
    """The call that writes nothing and computes what ``functional`` does.

    ``functional`` is the functional form of a call of ``function``. None if there is no such call,
    or it computes something else: another data type, other operators (``dropout`` on CUDA devices
    draws other numbers), another gradient.
    """
    found = _without_argument(functional, function) or _without_underscore(functional)
    if found is None or functional.on_subclass or len(dict(functional.kwargs)[MUTATED]) != 1:
        return None
    bare = functional.replace(**found, outputs=None, body=None)
    try:
        facts = expand.require(bare).value(bare)
    # The function without `inplace` may not expand for these arguments; the written form did.
    except TjError:
        return None
    made = bind_outputs(bare, facts, lambda _: functional.flat_outs[0].name)
    return made if _same(made, functional) else None


def _without_argument(
    functional: BoundSymbol, function: Callable[..., Any]
) -> dict[str, Any] | None:
    """Symbol and arguments without ``inplace=True``; None if there is none."""
    kwargs = {k: v for k, v in functional.kwargs if k != MUTATED}
    args = functional.args
    if kwargs.pop(PARAMETER, False) is not True:
        try:
            names = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):  # builtins of PyTorch's have no signature
            return None
        # It is the last parameter of each function that has it.
        if names[-1:] != [PARAMETER] or len(names) != len(args) or args[-1] is not True:
            return None
        args = args[:-1]
    return {"symbol": functional.symbol.base, "args": args, "kwargs": tuple(kwargs.items())}


def _without_underscore(functional: BoundSymbol) -> dict[str, Any] | None:
    """Symbol of ``torch.threshold`` for ``torch.threshold_``, which ``F.threshold`` calls in place.

    That is for functions that `torch.nn.functional` has in both forms, not for methods.
    """
    owner, _, name = functional.symbol.base.qualname.rpartition(".")
    plain = name.removesuffix("_")
    if plain == name or owner not in OWNERS or not (hasattr(F, name) and hasattr(F, plain)):
        return None
    kwargs = tuple((k, v) for k, v in functional.kwargs if k != MUTATED)
    return {"symbol": Symbol.parse(f"{owner}.{plain}"), "kwargs": kwargs}


def _same(made: BoundSymbol, functional: BoundSymbol) -> bool:
    """Test if ``made`` returns the first value of ``functional``, with its gradient."""
    new, out = functional.flat_outs[0], made.outputs
    if made.effects.mutates or made.effects.aliases or made.body is None:
        return False
    assert isinstance(new, TensorProxy)
    if not isinstance(out, TensorProxy) or (out.shape, out.dtype, out.device) != (
        new.shape,
        new.dtype,
        new.device,
    ):
        return False
    if requires_grad(new) != requires_grad(out) or not _same_body(made.body, functional.body):
        return False
    return not (requires_grad(out) and any(map(_has_own_gradient, made.body.calls)))


def _same_body(one: Body, other: Body | None) -> bool:
    if other is None or len(one.calls) != len(other.calls):
        return False
    pairs = zip(one.calls, other.calls, strict=True)
    same = all(_content(a) == _content(b) for a, b in pairs)
    return same and other.outputs[0] == one.outputs


def _content(call: BoundSymbol) -> tuple[Any, ...]:
    return call.symbol, call.args, call.kwargs, call.outputs, call.effects, call.context


def _has_own_gradient(call: BoundSymbol) -> bool:
    return _operator(call).removesuffix("_functional") in OWN_GRADIENT


def saves_argument(call: BoundSymbol) -> bool:
    """Test if the gradient of ``call`` needs its argument."""
    calls = () if call.body is None else call.body.calls
    return any(map(requires_grad, call.flat_outs)) and any(
        _operator(c) in SAVES_ARGUMENT for c in calls
    )


def _operator(call: BoundSymbol) -> str:
    return call.symbol.name.partition(".")[0]


LINEAR = frozenset({"add_", "sub_", "copy_"})
"""Methods whose gradient needs no argument."""


def saves_what_it_writes(call: BoundSymbol) -> bool:
    """Test if autograd may save an argument that ``call`` writes, as in ``v.mul_(v)``.

    Of the tensor that is written it saves a copy, of other arguments the tensors themselves. The
    backward raises if one of these is the tensor that was written.
    """
    if call.symbol.path.rpartition(".")[2] in LINEAR:
        return False
    names = [p.name for p in call.flat_args if isinstance(p, TensorProxy)]
    written = {call.flat_args[i].name for i in call.effects.mutates}
    twice = any(names.count(name) > 1 for name in written)
    return twice and any(map(requires_grad, (*call.flat_args, *call.flat_outs)))

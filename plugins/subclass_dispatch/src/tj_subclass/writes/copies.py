"""Checks that a new value of a tensor of a subclass may stand for a write to it.

A class may define ``copy_`` as anything, and the body that computes the value may give its parts
other strides than the written tensor's parts have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Constant,
    Context,
    Expand,
    Proxy,
    RuleTable,
    Symbol,
    TensorProxy,
    TjError,
    formal_index,
    formal_input,
    leaves,
)
from tj_torch.extend import Unsuitable

from tj_subclass.expansion.flattening import FLATTEN, UNFLATTEN, dense_proxies, same_but_strides

__all__ = ["check_copy", "is_laid_out"]

_COPY = Symbol("torch", "Tensor.copy_")


def check_copy(
    target: TensorProxy, value: TensorProxy, context: Context, expand: RuleTable[Expand]
) -> None:
    """Check that ``target.copy_(value)`` gives ``target``, of a subclass, the parts of ``value``.

    :raises Unsuitable: if its class does something else.
    """
    # Without gradients, as the epilogue copies: PyTorch refuses to write a leaf that needs one.
    tensors = [p.replace(requires_grad=False) for p in (target, value)]
    tensors = [p.replace(name=formal_input(i)) for i, p in enumerate(tensors)]
    call = BoundSymbol(_COPY, tuple(tensors), context=context.with_("grad", False))
    try:
        facts = expand.require(call).value(call)
    except TjError as error:
        raise Unsuitable(f"{_kind(target)}.copy_: {error}") from error
    wanted = [("a1", i) for i, _ in enumerate(dense_proxies(target))]
    updates = dict(facts.body.updates) if facts.body else {}
    known: dict[str, Any] = {p.name: _parts(p) for p in tensors}
    _follow(facts.body.calls if facts.body else (), known)
    if set(updates) != {0} or list(known.get(updates[0].name, ())) != wanted:
        raise Unsuitable(f"{_kind(target)}.copy_ does not copy what a tensor holds")


def _kind(p: TensorProxy) -> str:
    return "" if p.subclass is None else p.subclass.type.rpartition(".")[2]


def _parts(p: Proxy) -> tuple[Any, ...]:
    dense = list(dense_proxies(p)) if isinstance(p, TensorProxy) else [p]
    return tuple((p.name, i) for i in range(len(dense)))


def _follow(calls: Iterable[BoundSymbol], known: dict[str, Any]) -> None:
    """Map outputs of ``calls`` to (value, index of part), where they are parts unchanged."""
    for call in calls:
        of = {p.name: known.get(p.name, _parts(p)) for p in call.flat_args}
        given = [of[p.name] for p in call.flat_args]
        if call.symbol == FLATTEN:
            known |= {p.name: (part,) for p, part in zip(call.flat_outs, given[0], strict=True)}
        # What a constant part holds has no name that could be followed.
        elif call.symbol == UNFLATTEN and not any(isinstance(x, Constant) for x in call.args[1]):
            known[call.flat_outs[0].name] = tuple(of[p.name][0] for p in call.args[1])
        # A copy that converts or spreads its source has other values than that.
        elif call.symbol.qualname == "aten.copy.default" and _alike(*call.flat_args[:2]):
            known[call.flat_outs[0].name] = given[1]
        elif call.body is not None and call.on_subclass:
            inside = {p.name: given[formal_index(p.name)] for p in call.body.inputs}
            _follow(call.body.calls, inside)
            pairs = zip(call.flat_outs, leaves(call.body.outputs), strict=True)
            known |= {out.name: inside[p.name] for out, p in pairs if p.name in inside}


def _alike(a: Proxy, b: Proxy) -> bool:
    assert isinstance(a, TensorProxy)
    assert isinstance(b, TensorProxy)
    return (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape)


def is_laid_out(made: BoundSymbol, value: TensorProxy, like: TensorProxy) -> bool:
    """True if ``value``, an output of ``made``, has all strides of ``like``, parts included.

    :raises Unsuitable: if both are not of one subclass, with equal metadata but for strides.
    """
    if value.subclass is None or like.subclass is None or not same_but_strides(value, like):
        raise Unsuitable(f"{made.symbol} makes another tensor subclass of what it writes")
    wanted = [p.strides for p in dense_proxies(like)]
    return value.strides == like.strides and _computed(made, value) == wanted


def _computed(call: BoundSymbol, value: Proxy) -> Any:
    """Strides of the parts of ``value`` in the body of ``call``; None if they are not known."""
    if call.body is None:
        return None
    pairs = zip(call.flat_outs, leaves(call.body.outputs), strict=True)
    inner = next((formal for out, formal in pairs if out.name == value.name), None)
    if inner is None or not isinstance(inner, Proxy):
        return None
    for made in call.body.calls:
        if inner.name in {p.name for p in made.flat_outs}:
            return [p.strides for p in made.args[1]] if made.symbol == UNFLATTEN else None
    return [p.strides for p in dense_proxies(inner)] if isinstance(inner, TensorProxy) else None

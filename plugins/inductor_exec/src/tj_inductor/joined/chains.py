"""Sums of several values: chains of additions whose intermediate results nobody else reads."""

from __future__ import annotations

from collections.abc import Iterator

from tj_core.extend import BoundSymbol, Proxy, TensorProxy, contiguous_strides

from tj_inductor.joined.facts import ADD, DTYPES, Facts, operation

__all__ = ["chains"]


def is_sum(call: BoundSymbol) -> bool:
    """Check for a sum of two dense tensors of the same kind that takes no gradient."""
    inner = operation(call)
    if inner.symbol.qualname != ADD or inner.kwargs or len(call.flat_args) != 2:
        return False
    (out,) = call.flat_outs
    if not isinstance(out, TensorProxy) or out.requires_grad or out.dtype.name not in DTYPES:
        return False
    dense = out.strides == contiguous_strides(out.shape)
    return dense and all(p.same_meta(out) for p in call.flat_args)


def chains(facts: Facts) -> Iterator[tuple[BoundSymbol, list[Proxy]]]:
    """The last call and the summands of each sum whose parts nobody else reads."""
    inner: set[str] = set()
    for call in reversed(facts.trace.calls):
        if is_sum(call) and call.flat_outs[0].name not in inner:
            yield call, _summands(call, facts, inner)


def _summands(call: BoundSymbol, facts: Facts, inner: set[str]) -> list[Proxy]:
    found, waiting = [], list(reversed(call.flat_args))
    while waiting:
        p = waiting.pop()
        maker = facts.makers.get(p.name)
        if maker is not None and facts.reads[p.name] == 1 and _continues(maker, call):
            inner.add(p.name)
            waiting += reversed(maker.flat_args)
        else:
            found.append(p)
    return found


def _continues(maker: BoundSymbol, call: BoundSymbol) -> bool:
    return is_sum(maker) and maker.context == call.context

"""Compare a call's outputs with newly derived ones, up to names of values and symbols.

A call whose sizes or numbers depend on data makes symbols, and each derivation makes new ones. So a
derived symbol that no argument has may correspond to another symbol in the call's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tj_core.ir.proxy import Dim, NumberProxy, Proxy, SymDim, TensorProxy
from tj_core.ir.sizes import (
    Operation,
    SizeTree,
    normal_size,
    parse_size,
    same_size,
    same_stride,
    size_symbols,
)
from tj_core.ir.tree import leaves
from tj_core.verify.wellformed import same_metadata, settled

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol

__all__ = ["agrees"]


def agrees(call: BoundSymbol, derived: Any, *, nested: bool = False) -> bool:
    """Compare the outputs of ``call`` with ``derived`` ones.

    ``nested`` means that the call stands in a body, whose values may leave out ``requires_grad``.
    """
    before = list(leaves(call.outputs))
    said, found = list(map(settled, before)), list(map(settled, leaves(derived)))
    if len(said) != len(found):
        return False
    sizes = _settled_sizes(call)
    names = _made(call, found, said, sizes)
    same = _same_inside if nested else Proxy.same_meta
    return all(
        _same(_renamed(a, b, names, sizes, unsettled), b, same)
        for a, b, unsettled in zip(found, said, before, strict=True)
    )


def _same_inside(derived: Proxy, said: Proxy) -> bool:
    """`same_metadata` without the context of a tensor subclass, which may depend on autograd."""
    return same_metadata(_without_context(derived), _without_context(said))


def _without_context(p: Proxy) -> Proxy:
    if not isinstance(p, TensorProxy) or p.subclass is None:
        return p
    return p.replace(subclass=replace(p.subclass, context=""))


def _same(derived: Any, said: Any, same: Any) -> bool:
    if isinstance(derived, Proxy) and isinstance(said, Proxy):
        return bool(same(derived, said))
    if isinstance(derived, bool) and isinstance(said, NumberProxy):
        return said.kind == "bool" and bool(said.expr)  # later checks in the program decide it
    if type(derived) is int and isinstance(said, NumberProxy):
        return said.kind == "int" and bool(said.expr) and same_size(str(derived), said.expr)
    return not isinstance(said, Proxy) and bool(derived == said)


def _texts(proxy: Any) -> tuple[str, ...]:
    """The expressions in the metadata of ``proxy``: a tensor's sizes, then its strides."""
    if isinstance(proxy, TensorProxy):
        return tuple(map(str, (*proxy.shape, *proxy.strides)))
    return (proxy.expr,) if isinstance(proxy, NumberProxy) and proxy.expr else ()


def _settled_sizes(call: BoundSymbol) -> Mapping[str, str]:
    """The sizes of arguments that guards have settled: old expression to new one.

    Numbers have no `SymDim.settled` of their own.
    """
    tensors = (p for p in call.flat_args if isinstance(p, TensorProxy))
    pairs = (
        (str(a), str(b)) for p in tensors for a, b in zip(p.shape, settled(p).shape, strict=True)
    )
    return {before: now for before, now in pairs if before != now}


def _made(
    call: BoundSymbol, derived: list[Any], said: list[Any], sizes: Mapping[str, str]
) -> Mapping[str, str]:
    """For each symbol that the derivation made, the expression at its place in ``call``."""
    texts = (text for p in call.flat_args for text in _texts(p))
    known = {s for text in (*texts, *sizes.values()) for s in size_symbols(text)}
    pairs = (p for p in _pairs(derived, said) if p[0].isidentifier())
    found = (*_of_booleans(derived, said), *reversed(list(pairs)))  # the first of `pairs` wins
    return {mine: theirs for mine, theirs in found if mine not in known}


def _pairs(derived: list[Any], said: list[Any]) -> Iterator[tuple[str, str]]:
    for a, b in zip(derived, said, strict=True):
        yield from zip(_texts(a), _texts(b), strict=False)


def _of_booleans(derived: list[Any], said: list[Any]) -> Iterator[tuple[str, str]]:
    """The symbols of truth values, which occur only inside comparisons, such as ``Eq(u0, 1)``."""
    for a, b in zip(derived, said, strict=True):
        if isinstance(a, NumberProxy) and a.kind == "bool":
            for mine, theirs in zip(_texts(a), _texts(b), strict=False):
                yield from _corresponding(parse_size(mine), parse_size(theirs))


def _corresponding(mine: SizeTree, theirs: SizeTree) -> Iterator[tuple[str, str]]:
    """Pairs of symbols at one place of two expressions, as in ``Eq(u1, 1)`` and ``Eq(u0, 1)``."""
    if isinstance(mine, str) and isinstance(theirs, str):
        yield mine, theirs
    elif isinstance(mine, Operation) and isinstance(theirs, Operation) and _alike(mine, theirs):
        for a, b in zip(mine.args, theirs.args, strict=True):
            yield from _corresponding(a, b)


def _alike(mine: Operation, theirs: Operation) -> bool:
    return mine.name == theirs.name and len(mine.args) == len(theirs.args)


def _renamed(
    derived: Any, said: Any, names: Mapping[str, str], sizes: Mapping[str, str], unsettled: Any
) -> Any:
    """``derived`` with sizes spelled as in ``said``, where the two are equal up to ``names``.

    ``unsettled`` is ``said`` without the effect of guards, which settle no symbol of ``derived``.
    """
    if type(derived) is not type(said):
        return derived
    if isinstance(derived, NumberProxy):
        same = (derived.expr == said.expr and not names) or (
            normal_size(derived.expr, {**sizes, **names}) == normal_size(said.expr, sizes)
        )
        return derived.replace(expr=said.expr) if same else derived
    if not isinstance(derived, TensorProxy):
        return derived
    return derived.replace(
        shape=_dims(derived.shape, said.shape, unsettled.shape, names, same_size),
        strides=_dims(derived.strides, said.strides, unsettled.strides, names, same_stride),
    )


def _dims(
    derived: tuple[Dim, ...],
    said: tuple[Dim, ...],
    unsettled: tuple[Dim, ...],
    names: Mapping[str, str],
    same: Callable[[str, str, Mapping[str, str]], bool],
) -> tuple[Dim, ...]:
    if len(derived) != len(said):
        return derived
    return tuple(
        b if isinstance(a, SymDim) and any(same(str(a), str(c), names) for c in (b, before)) else a
        for a, b, before in zip(derived, said, unsettled, strict=True)
    )

"""Whether the outputs of a call are those derived for it, names of values and symbols apart.

A call whose sizes or numbers depend on data makes symbols, and whoever derives it again makes
others. So a symbol that is not the arguments' may stand for one that the call says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tj_core.proxy import Dim, NumberProxy, Proxy, SymDim, TensorProxy
from tj_core.sizes import same_size, size_symbols
from tj_core.symbol import BoundSymbol
from tj_core.tree import leaves
from tj_core.wellformed import like

__all__ = ["agrees"]


def agrees(call: BoundSymbol, derived: Any, *, nested: bool = False) -> bool:
    """Whether ``derived`` are the outputs that ``call`` says it has.

    ``nested`` says that the call is one in a body, whose values may be silent on autograd.
    """
    said, found = list(leaves(call.outputs)), list(leaves(derived))
    if len(said) != len(found):
        return False
    names = _made(call, found, said)
    same = like if nested else Proxy.same_meta
    return all(_same(_renamed(a, b, names), b, same) for a, b in zip(found, said, strict=True))


def _same(derived: Any, said: Any, same: Any) -> bool:
    if isinstance(derived, Proxy) and isinstance(said, Proxy):
        return bool(same(derived, said))
    return not isinstance(said, Proxy) and bool(derived == said)


def _texts(proxy: Any) -> tuple[str, ...]:
    """The expressions in the metadata of ``proxy``: a tensor's sizes, then its strides."""
    if isinstance(proxy, TensorProxy):
        return tuple(map(str, (*proxy.shape, *proxy.strides)))
    return (proxy.expr,) if isinstance(proxy, NumberProxy) and proxy.expr else ()


def _made(call: BoundSymbol, derived: list[Any], said: list[Any]) -> Mapping[str, str]:
    """What ``call`` says in the place of each symbol that deriving it made."""
    known = {s for p in call.flat_args for text in _texts(p) for s in size_symbols(text)}
    return {
        mine: theirs
        for mine, theirs in reversed(list(_pairs(derived, said)))
        if mine.isidentifier() and mine not in known
    }


def _pairs(derived: list[Any], said: list[Any]) -> Iterator[tuple[str, str]]:
    for a, b in zip(derived, said, strict=True):
        yield from zip(_texts(a), _texts(b), strict=False)


def _renamed(derived: Any, said: Any, names: Mapping[str, str]) -> Any:
    """``derived`` with the sizes that ``said`` has, where they are the same by other names."""
    if not names or type(derived) is not type(said):
        return derived
    if isinstance(derived, NumberProxy):
        same = same_size(derived.expr, said.expr, names)
        return derived.replace(expr=said.expr) if same else derived
    if not isinstance(derived, TensorProxy):
        return derived
    return derived.replace(
        shape=_dims(derived.shape, said.shape, names),
        strides=_dims(derived.strides, said.strides, names),
    )


def _dims(
    derived: tuple[Dim, ...], said: tuple[Dim, ...], names: Mapping[str, str]
) -> tuple[Dim, ...]:
    if len(derived) != len(said):
        return derived
    return tuple(
        b if isinstance(a, SymDim) and same_size(str(a), str(b), names) else a
        for a, b in zip(derived, said, strict=True)
    )

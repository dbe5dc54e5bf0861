"""Calls that take tensor subclasses apart and put them together, and what they need to know."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from tj_core.extend import (
    NO_TAGS,
    Alias,
    BoundSymbol,
    Constant,
    Dim,
    Effects,
    Proxy,
    SubclassInfo,
    Symbol,
    SymDim,
    TensorProxy,
)

from tj_torch.ops.convert import State
from tj_torch.ops.errors import CannotExpand
from tj_torch.runtime.subclasses import Layout, unflatten

__all__ = [
    "FLATTEN",
    "UNFLATTEN",
    "assembled",
    "dense_proxies",
    "flatten_call",
    "layout_of",
    "same_but_strides",
    "symbols_of_layout",
    "unflatten_call",
]

FLATTEN, UNFLATTEN = Symbol("tj", "flatten"), Symbol("tj", "unflatten")

_LAYOUTS: weakref.WeakValueDictionary[str, Layout] = weakref.WeakValueDictionary()
"""The layouts that programs hold, by name: one object for equal ones."""


def dense_proxies(proxy: TensorProxy) -> Iterator[TensorProxy]:
    """The dense tensors that ``proxy`` consists of, called like the attributes; or itself."""
    if proxy.subclass is None:
        yield proxy
        return
    for _, part in proxy.subclass.inner:
        yield from dense_proxies(part)


def same_but_strides(a: TensorProxy, b: TensorProxy) -> bool:
    """Whether two tensors are alike, but for their strides and those of what they hold."""
    return _without_strides(a) == _without_strides(b)


def _without_strides(p: TensorProxy) -> TensorProxy:
    p = p.replace(name="", tags=NO_TAGS, requires_grad=False, strides=())
    if p.subclass is None:
        return p
    inner = tuple((n, _without_strides(part)) for n, part in p.subclass.inner)
    return p.replace(subclass=replace(p.subclass, inner=inner))


def flatten_call(proxy: TensorProxy, fresh: Callable[[], str]) -> BoundSymbol:
    """The call that takes ``proxy`` apart, into values that ``fresh`` names."""
    outputs = tuple(p.replace(name=fresh(), requires_grad=False) for p in dense_proxies(proxy))
    aliases = tuple(Alias(i, "arg", 0) for i in range(len(outputs)))
    return BoundSymbol(FLATTEN, (proxy,), outputs=outputs, effects=Effects(aliases=aliases))


def unflatten_call(
    proxy: TensorProxy, parts: Iterable[Proxy | Constant], sizes: Iterable[Any] = ()
) -> BoundSymbol:
    """The call that makes ``proxy`` of its dense ``parts``, with ``sizes`` where it has symbols."""
    layout = layout_of(proxy)
    described = repr(_unnamed(proxy)).encode()
    kind = layout.kind.__name__
    text = f"_{kind}_{hashlib.sha256(described).hexdigest()[:12]}"
    constant = Constant(text, _LAYOUTS.setdefault(text, layout), named=False)
    parts, sizes = tuple(parts), tuple(sizes)
    args = (constant, parts, sizes) if sizes else (constant, parts)
    held = range(sum(isinstance(part, Proxy) for part in parts))
    aliases = tuple(Alias(0, "arg", i) for i in held)
    return BoundSymbol(UNFLATTEN, args, outputs=proxy, effects=Effects(aliases=aliases))


def _unnamed(proxy: TensorProxy) -> tuple[Any, ...]:
    """What tells the layout of ``proxy`` from others."""
    p = proxy.map_symbols(lambda _: SymDim("?"))
    return p.subclass, p.shape, p.strides


def assembled(proxy: TensorProxy, parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """The tensor like ``proxy``, of a subclass, that consists of the dense ``parts``.

    :raises CannotExpand: if it is not known how it is made.
    """
    return unflatten(layout_of(proxy), parts)


def layout_of(proxy: TensorProxy) -> Layout:
    """How a tensor like ``proxy`` is made of its parts.

    :raises CannotExpand: if that is not known, or depends on a size that is a symbol.
    """
    info = proxy.subclass
    assert isinstance(info, SubclassInfo)
    if not isinstance(info.state, State):
        raise CannotExpand(f"how a {info.type} is made is not known here")
    parts = tuple((n, None if p.subclass is None else layout_of(p)) for n, p in info.inner)
    state = info.state
    rest = tuple(state.rest.items())
    shape, strides = _known(proxy.shape), _known(proxy.strides)
    return Layout(state.kind, parts, state.context, rest, shape, strides)


def _known(dims: tuple[Dim, ...]) -> tuple[int | None, ...]:
    return tuple(n if isinstance(n, int) else None for n in dims)


def symbols_of_layout(proxy: Proxy) -> Iterator[SymDim]:
    """What the layout of ``proxy`` leaves open, in the order that `unflatten` takes it."""
    if not isinstance(proxy, TensorProxy) or proxy.subclass is None:
        return
    yield from (n for n in (*proxy.shape, *proxy.strides) if isinstance(n, SymDim))
    for _, part in proxy.subclass.inner:
        yield from symbols_of_layout(part)

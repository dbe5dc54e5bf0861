"""``tj.flatten`` and ``tj.unflatten`` calls, and the layouts that they need."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

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
from tj_torch.internal import CannotExpand, Layout, State

__all__ = [
    "FLATTEN",
    "UNFLATTEN",
    "dense_proxies",
    "flatten_call",
    "layout_of",
    "same_but_strides",
    "symbols_of_layout",
    "unflatten_call",
]

FLATTEN, UNFLATTEN = Symbol("tj", "flatten"), Symbol("tj", "unflatten")

_LAYOUTS: weakref.WeakValueDictionary[str, Layout] = weakref.WeakValueDictionary()
"""The layouts that programs hold, by name: one object for equal ones.

One table per process: a name is made of all that tells layouts apart, so that it means the same in
every session and traces of two sessions may be compared. A layout is freed with the last program.
"""


def dense_proxies(proxy: TensorProxy) -> Iterator[TensorProxy]:
    """Yield the dense tensors in ``proxy``, named like its attributes; itself if it is dense."""
    if proxy.subclass is None:
        yield proxy
        return
    for _, part in proxy.subclass.inner:
        yield from dense_proxies(part)


def same_but_strides(a: TensorProxy, b: TensorProxy) -> bool:
    """True if two tensors differ in strides alone, their own and those of their parts."""
    return _without_strides(a) == _without_strides(b)


def _without_strides(p: TensorProxy) -> TensorProxy:
    p = p.replace(name="", tags=NO_TAGS, requires_grad=False, strides=())
    if p.subclass is None:
        return p
    inner = tuple((n, _without_strides(part)) for n, part in p.subclass.inner)
    return p.replace(subclass=replace(p.subclass, inner=inner))


def flatten_call(proxy: TensorProxy, fresh: Callable[[], str]) -> BoundSymbol:
    """The ``tj.flatten`` of ``proxy``, its outputs named by ``fresh``."""
    # Operators on the parts run below autograd, and see no gradients.
    outputs = tuple(p.replace(name=fresh(), requires_grad=False) for p in dense_proxies(proxy))
    aliases = tuple(Alias(i, "arg", 0) for i in range(len(outputs)))
    return BoundSymbol(FLATTEN, (proxy,), outputs=outputs, effects=Effects(aliases=aliases))


def unflatten_call(
    proxy: TensorProxy, parts: Iterable[Proxy | Constant], sizes: Iterable[Any] = ()
) -> BoundSymbol:
    """The ``tj.unflatten`` of ``parts`` to ``proxy``; ``sizes`` are the values of its symbols."""
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
    """Identity of a layout: subclass, shape and strides, without names of symbols."""
    # Symbols are called otherwise in each program, and one layout serves all.
    p = proxy.map_symbols(lambda _: SymDim("?"))
    return p.subclass, p.shape, p.strides


def layout_of(proxy: TensorProxy) -> Layout:
    """Layout by which a tensor like ``proxy`` is made of its parts.

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
    """Yield the symbolic sizes and strides of ``proxy``, in the order of `unflatten`."""
    if not isinstance(proxy, TensorProxy) or proxy.subclass is None:
        return
    yield from (n for n in (*proxy.shape, *proxy.strides) if isinstance(n, SymDim))
    for _, part in proxy.subclass.inner:
        yield from symbols_of_layout(part)

"""Calls that take tensor subclasses apart and put them together, and what they need to know."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator

from tj_core.extend import (
    Alias,
    BoundSymbol,
    Constant,
    Effects,
    Proxy,
    SubclassInfo,
    Symbol,
    TensorProxy,
)

from tj_torch.ops.convert import State
from tj_torch.ops.errors import CannotExpand
from tj_torch.runtime.subclasses import Layout

__all__ = ["FLATTEN", "UNFLATTEN", "dense_proxies", "flatten_call", "layout_of", "unflatten_call"]

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


def _plain(proxy: TensorProxy, name: str) -> TensorProxy:
    return proxy.replace(name=name, requires_grad=False)


def flatten_call(proxy: TensorProxy, fresh: Callable[[], str]) -> BoundSymbol:
    """The call that takes ``proxy`` apart, into values that ``fresh`` names."""
    outputs = tuple(_plain(p, fresh()) for p in dense_proxies(proxy))
    aliases = tuple(Alias(i, "arg", 0) for i in range(len(outputs)))
    return BoundSymbol(FLATTEN, (proxy,), outputs=outputs, effects=Effects(aliases=aliases))


def unflatten_call(proxy: TensorProxy, parts: Iterable[Proxy | Constant]) -> BoundSymbol:
    """The call that makes ``proxy`` of its dense ``parts``."""
    parts = tuple(parts)
    layout = layout_of(proxy)
    described = repr((proxy.subclass, proxy.shape, proxy.strides)).encode()
    kind = layout.kind.__name__
    text = f"_{kind}_{hashlib.sha256(described).hexdigest()[:12]}"
    constant = Constant(text, _LAYOUTS.setdefault(text, layout), named=False)
    return BoundSymbol(UNFLATTEN, (constant, parts), outputs=proxy)


def layout_of(proxy: TensorProxy) -> Layout:
    """How a tensor like ``proxy`` is made of its parts.

    :raises CannotExpand: if that is not known, or a size is a symbol.
    """
    info = proxy.subclass
    assert isinstance(info, SubclassInfo)
    if not isinstance(info.state, State):
        raise CannotExpand(f"how a {info.type} is made is not known here")
    if any(not isinstance(n, int) for n in (*proxy.shape, *proxy.strides)):
        raise CannotExpand("a tensor subclass has a size that is a symbol")
    parts = tuple((n, None if p.subclass is None else layout_of(p)) for n, p in info.inner)
    state = info.state
    rest = tuple(state.rest.items())
    return Layout(state.kind, parts, state.context, rest, proxy.shape, proxy.strides)  # type: ignore[arg-type]

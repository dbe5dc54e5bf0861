"""Keys of the memo: calls with equal keys have the same expansion."""

from __future__ import annotations

import struct
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import Constant, Context, Dim, NumberProxy, SubclassInfo, SymDim, TensorProxy

from tj_torch.ops.fakes.read_state import reads
from tj_torch.ops.sizes.program import Sizes, is_sized, known_sizes, symbols_in
from tj_torch.ops.sizes.shape_env import numbered
from tj_torch.ops.values.convert import State

if TYPE_CHECKING:
    from tj_torch.ops.expansion.derive import Slot

__all__ = ["Unkeyable", "call_key", "known_of", "tangents_key"]


class Unkeyable(Exception):
    """The call has an argument without a key, and must be expanded every time."""


def call_key(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Any,
    context: Context,
    modes: Any,
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...]]:
    """Key of a call, with the objects to keep alive and the symbols in its arguments' sizes.

    The key contains the ids of these objects, and has the symbols by order of appearance alone.

    :raises Unkeyable: if the call must be expanded every time.
    """
    if getattr(fn, "__closure__", None) is not None:
        raise Unkeyable(fn)  # its closure may change
    parts: list[Any] = [id(fn), modes, context.items]
    alive: list[Any] = [fn]
    seen = _Seen((args, kwargs))
    _add(args, parts, seen, alive)
    if kwargs:
        _add(kwargs, parts, seen, alive)
    return tuple(parts), tuple(alive), seen.symbols


def known_of(symbols: tuple[str, ...], sizes: Sizes) -> tuple[Any, ...]:
    """Part of a key for the facts of ``symbols`` and assertions on them, without their hints."""
    asserted = frozenset(numbered(text, symbols) for text in sizes.asserted(symbols))
    return (*(sizes.facts(name).key for name in symbols), asserted)


def tangents_key(tangents: Mapping[Slot, TensorProxy], symbols: tuple[str, ...]) -> tuple[Any, ...]:
    """Part of a key for the values that have tangents, and the tangents' metadata.

    Sizes over symbols that the arguments lack are left out, as the values themselves have them.
    """

    def expression(text: str) -> str:
        return numbered(text, symbols)

    def dims(proxy: TensorProxy) -> Any:
        if any(type(d) is SymDim for d in (*proxy.shape, *proxy.strides)):
            if not known_sizes(proxy, symbols):
                return None
            return tuple(expression(str(d)) for d in (*proxy.shape, *proxy.strides))
        return proxy.shape, proxy.strides

    def kind(proxy: TensorProxy) -> Any:
        info = proxy.subclass
        return info and (_numbered(info, expression), *_meanings(info))

    return tuple((s, dims(p), p.dtype, p.device, p.flags, kind(p)) for s, p in tangents.items())


def _numbered(info: SubclassInfo, expression: Callable[[str], str]) -> SubclassInfo:
    """``info`` with symbols by number, printed by ``expression``."""
    if not any(is_sized(p) for _, p in info.inner):
        return info
    pairs = [(n, p.map_symbols(lambda d: SymDim(expression(d.name)))) for n, p in info.inner]
    return replace(info, inner=tuple(pairs))


class _Seen:
    """Values met so far, numbered, and the symbols in all of them."""

    __slots__ = ("symbols", "tree", "values")

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.values: dict[str, int] = {}
        self.symbols: tuple[str, ...] = ()

    def dims(self, dims: tuple[Dim, ...]) -> tuple[Any, ...]:
        """``dims`` with symbols by number."""
        if all([type(d) is int for d in dims]):
            return dims
        return tuple([d if isinstance(d, int) else self.expression(d.name) for d in dims])

    def expression(self, text: str) -> str:
        """``text`` with symbols by number."""
        if not self.symbols:
            self.symbols = symbols_in(self.tree)
        return numbered(text, self.symbols)


def _add(tree: Any, parts: list[Any], seen: _Seen, alive: list[Any]) -> None:
    """Append all that distinguishes ``tree``; proxies count by metadata and by identity."""
    kind = type(tree)
    if kind is TensorProxy:
        _add_tensor(tree, parts, seen)
    elif kind is NumberProxy:
        _add_number(tree, parts, seen)
    elif kind is tuple or kind is list:
        parts.append(kind)
        parts.append(len(tree))
        for item in tree:
            _add(item, parts, seen, alive)
    elif kind is float:
        parts.append(float)
        parts.append(struct.pack("d", tree))  # 0.0 == -0.0, and nan != nan
    elif kind in _PLAIN:
        parts.append(kind)
        parts.append(tree)
    else:
        add: Callable[..., None] = _OTHER.get(kind, _unkeyable)
        add(tree, parts, seen, alive)


# Beside the value a key has the type: `1 == True`.
_PLAIN = frozenset((int, str, bool, bytes, type(None), type(...)))


def _add_tensor(proxy: TensorProxy, parts: list[Any], seen: _Seen) -> None:
    known = seen.values.setdefault(proxy.name, len(seen.values))
    if known != len(seen.values) - 1:
        # Met before: that it is the same tensor says the rest.
        parts.append(known)
        return
    dtype, device = proxy.dtype, proxy.device
    parts.append(
        (
            known,
            seen.dims(proxy.shape),
            seen.dims(proxy.strides),
            dtype.name,
            device.type,
            device.index,
            proxy.requires_grad,
            proxy.layout,
            proxy.flags,
            proxy.subclass and _numbered(proxy.subclass, seen.expression),
        )
    )
    if proxy.subclass is not None:
        parts.append(tuple(_meanings(proxy.subclass)))


def _meanings(info: SubclassInfo) -> Iterator[Any]:
    """Current methods of wrapper classes, which implement operations, and what these read."""
    kind = info.state.kind if isinstance(info.state, State) else None
    # The class itself: a module that is loaded again has another one of this name.
    yield kind
    if kind is not None:
        for base in kind.__mro__[: kind.__mro__.index(torch.Tensor)]:
            yield from (v for v in vars(base).values() if callable(v) or hasattr(v, "__func__"))
        yield from (read.key for read in reads(kind))
    for _, part in info.inner:
        if part.subclass is not None:
            yield from _meanings(part.subclass)


def _add_number(proxy: NumberProxy, parts: list[Any], seen: _Seen) -> None:
    if not proxy.expr:
        raise Unkeyable(proxy)
    known = seen.values.setdefault(proxy.name, len(seen.values))
    parts.append((known, proxy.kind, seen.expression(proxy.expr)))


def _add_complex(tree: complex, parts: list[Any], *_: Any) -> None:
    parts.append(complex)
    # As for floats: signs of zero, and NaN.
    parts.append(struct.pack("dd", tree.real, tree.imag))


def _add_dict(tree: dict[Any, Any], parts: list[Any], seen: _Seen, alive: list[Any]) -> None:
    parts.append(dict)
    parts.append(len(tree))
    for name, item in tree.items():
        parts.append(name)
        _add(item, parts, seen, alive)


def _add_slice(tree: slice, parts: list[Any], seen: _Seen, alive: list[Any]) -> None:
    parts.append(slice)
    for item in (tree.start, tree.stop, tree.step):
        _add(item, parts, seen, alive)


def _add_constant(tree: Constant, parts: list[Any], seen: _Seen, alive: list[Any]) -> None:
    parts.append(Constant)
    if tree.named:
        parts.append(tree.text)
    elif _by_identity(tree.value):
        parts.append(id(tree.value))
        alive.append(tree.value)
    else:
        raise Unkeyable(tree)


def _by_identity(value: Any) -> bool:
    """Test for an object without state that matters: equal ids mean equal results."""
    if isinstance(value, types.FunctionType):
        return value.__closure__ is None
    return isinstance(value, type | types.BuiltinFunctionType | torch.Generator)


def _unkeyable(tree: Any, *_: Any) -> None:
    raise Unkeyable(tree)


_OTHER: dict[type, Callable[..., None]] = {
    complex: _add_complex,
    dict: _add_dict,
    slice: _add_slice,
    Constant: _add_constant,
}

"""Keys of the memo: two calls have one key only if they have one expansion."""

from __future__ import annotations

import struct
import types
from collections.abc import Callable
from typing import Any

import torch
from tj_core.proxy import TensorProxy
from tj_core.symbol import Constant, Context

__all__ = ["Unkeyable", "call_key"]


class Unkeyable(Exception):
    """The call has an argument that nothing but itself can stand for."""


def call_key(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Any,
    context: Context,
    modes: Any,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The key of a call, and the objects that must outlive it because the key has their ids.

    :raises Unkeyable: if the call must be expanded every time.
    """
    if getattr(fn, "__closure__", None) is not None:
        raise Unkeyable(fn)  # what it closes over may change
    parts: list[Any] = [id(fn), modes, context.items]
    alive: list[Any] = [fn]
    seen: dict[str, int] = {}
    _add(args, parts, seen, alive)
    if kwargs:
        _add(kwargs, parts, seen, alive)
    return tuple(parts), tuple(alive)


def _add(tree: Any, parts: list[Any], seen: dict[str, int], alive: list[Any]) -> None:
    """Append what tells ``tree`` from other trees; proxies count by metadata and identity."""
    kind = type(tree)
    if kind is TensorProxy:
        _add_tensor(tree, parts, seen)
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
        _OTHER.get(kind, _unkeyable)(tree, parts, seen, alive)


_PLAIN = frozenset((int, str, bool, bytes, type(None), type(...)))


def _add_tensor(proxy: TensorProxy, parts: list[Any], seen: dict[str, int]) -> None:
    known = seen.setdefault(proxy.name, len(seen))
    if known != len(seen) - 1:
        parts.append(known)
        return
    dtype, device = proxy.dtype, proxy.device
    parts.append(
        (
            known,
            proxy.shape,
            proxy.strides,
            dtype.name,
            device.type,
            device.index,
            proxy.requires_grad,
            proxy.layout,
            proxy.flags,
            proxy.subclass,
        )
    )


def _add_complex(tree: complex, parts: list[Any], *_: Any) -> None:
    parts.append(complex)
    parts.append(struct.pack("dd", tree.real, tree.imag))


def _add_dict(
    tree: dict[Any, Any], parts: list[Any], seen: dict[str, int], alive: list[Any]
) -> None:
    parts.append(dict)
    parts.append(len(tree))
    for name, item in tree.items():
        parts.append(name)
        _add(item, parts, seen, alive)


def _add_slice(tree: slice, parts: list[Any], seen: dict[str, int], alive: list[Any]) -> None:
    parts.append(slice)
    for item in (tree.start, tree.stop, tree.step):
        _add(item, parts, seen, alive)


def _add_constant(tree: Constant, parts: list[Any], seen: dict[str, int], alive: list[Any]) -> None:
    parts.append(Constant)
    if tree.named:
        parts.append(tree.text)
    elif _by_identity(tree.value):
        parts.append(id(tree.value))
        alive.append(tree.value)
    else:
        raise Unkeyable(tree)


def _by_identity(value: Any) -> bool:
    """Whether ``value`` means the same as long as it is the same object."""
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

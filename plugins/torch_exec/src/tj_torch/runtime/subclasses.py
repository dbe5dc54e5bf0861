"""Tensor subclasses taken apart into dense tensors, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tj_torch.runtime.forms import Form, form_of

__all__ = [
    "Layout",
    "copied_wrapper",
    "dense_tensors",
    "flatten",
    "is_wrapper",
    "is_wrapper_class",
    "kinds_in",
    "read_tensors",
    "unflatten",
    "waited",
]


@dataclass(frozen=True)
class Layout:
    """Composition of a tensor of type ``kind`` from its parts.

    ``parts`` has the attributes in order, with the layout of those that are subclasses in turn;
    ``context`` and ``rest`` are what the type knows beside them. A size or stride that is None is
    known when the tensor is made.
    """

    kind: type
    parts: tuple[tuple[str, Layout | None], ...]
    context: Any
    rest: tuple[tuple[str, Any], ...]
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Test for a traceable wrapper subclass, which consists of other tensors."""
    kind = type(tensor)
    return kind is not torch.Tensor and hasattr(kind, "__tensor_flatten__")


def is_wrapper_class(value: Any) -> bool:
    """Test for the class of a traceable wrapper subclass."""
    return isinstance(value, type) and hasattr(value, "__tensor_flatten__")


def dense_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The dense tensors that ``tensor`` consists of, in order; itself if it is one."""
    if not is_wrapper(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in names:
        part = getattr(tensor, name)
        # `__tensor_flatten__` may name attributes that are no tensors, such as a device mesh.
        if isinstance(part, torch.Tensor):
            yield from dense_tensors(part)


def kinds_in(values: Iterable[Any]) -> frozenset[type]:
    """The classes of wrappers among ``values``, and of those inside of them."""
    found: set[type] = set()
    for value in values:
        if isinstance(value, torch.Tensor) and is_wrapper(value):
            names, _ = value.__tensor_flatten__()  # type: ignore[attr-defined]
            found |= {type(value), *kinds_in(getattr(value, name) for name in names)}
    return frozenset(found)


def waited(value: Any) -> Any:
    """``value``; for a tensor that stands for the result of a collective, that result.

    PyTorch's operations wait for the collective when they first read such a tensor. Who reads the
    memory behind it would see what is written there meanwhile. Tensors without
    memory, on which programs are recorded, stay as they are.
    """
    wait = getattr(type(value), "trigger_wait", None)
    if wait is None or not all(map(_has_memory, dense_tensors(value))):
        return value
    return wait(value)


def _has_memory(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and form_of(tensor) is not Form.WRAPPED


def read_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The dense tensors that ``tensor`` consists of, in order, with what collectives write."""
    tensor = waited(tensor)
    if not is_wrapper(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in names:
        if isinstance(part := getattr(tensor, name), torch.Tensor):
            yield from read_tensors(part)


def flatten(tensor: torch.Tensor, /) -> tuple[torch.Tensor, ...]:
    """The dense tensors that a tensor of a subclass consists of, without gradients.

    Operators of a subclass run below autograd: to it there is the tensor, and not what it holds.
    """
    return tuple(_without_gradients(read_tensors(tensor)))


def unflatten(
    layout: Layout, parts: Iterable[torch.Tensor], sizes: Iterable[int] = (), /
) -> torch.Tensor:
    """The tensor of ``layout`` that consists of the dense tensors ``parts``, without gradients.

    ``sizes`` are those that ``layout`` lacks, and strides, in order, outer ones before inner ones.
    """
    made: torch.Tensor = _made(layout, iter(_without_gradients(parts)), iter(sizes))
    return made


def _without_gradients(parts: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [p.detach() if p.requires_grad else p for p in parts]


def _made(layout: Layout, parts: Iterator[torch.Tensor], sizes: Iterator[int]) -> Any:
    shape, strides = _filled(layout.shape, sizes), _filled(layout.strides, sizes)
    inner = dict(layout.rest)
    for name, part in layout.parts:
        inner[name] = next(parts) if part is None else _made(part, parts, sizes)
    kind: Any = layout.kind
    return kind.__tensor_unflatten__(inner, layout.context, shape, strides)


def _filled(dims: tuple[int | None, ...], sizes: Iterator[int]) -> tuple[int, ...]:
    return tuple([next(sizes) if n is None else n for n in dims])


def copied_wrapper(
    tensor: torch.Tensor, like: torch.Tensor, copy: Callable[[torch.Tensor, torch.Tensor], Any]
) -> torch.Tensor:
    """``tensor``, of a wrapper subclass, laid out as ``like``, with copies of the parts in it.

    ``copy`` makes them, of each part and that of ``like``. The class has no say in that: what is a
    copy to it may have another context. To autograd the result is ``tensor``.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        made: torch.Tensor = _Copied.apply(tensor, like, copy)  # type: ignore[no-untyped-call]
        return made
    copied: torch.Tensor = _with_copies(tensor, like, copy)
    return copied


class _Copied(torch.autograd.Function):
    """A copy as autograd sees it: the gradient is passed on."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, like: torch.Tensor, copy: Any) -> torch.Tensor:
        """The copy."""
        copied: torch.Tensor = _with_copies(tensor, like, copy)
        return copied

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradient of the tensor is that of the copy."""
        return gradient, None, None


def _with_copies(tensor: Any, like: Any, copy: Callable[..., Any]) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if not is_wrapper(tensor):
        return copy(tensor, like)
    kind: Any = type(tensor)
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = {n: _with_copies(getattr(tensor, n), getattr(like, n), copy) for n in names}
    return kind.__tensor_unflatten__(inner, context, like.shape, like.stride())

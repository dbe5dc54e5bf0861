"""What functional forms of calls run as: the same operation, with nothing it was given written.

``f.functional`` takes what ``f`` takes and returns new values beside ``f``'s result;
``f.inverse`` takes a new value of a view that ``f`` made and returns the viewed tensor's. Both run
``f`` itself on copies, so that PyTorch says what they mean: what they decompose into and how they
are differentiated is read off these functions, like everything else (`tj_torch.ops`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import leaves, map_tree

from tj_torch.runtime.subclasses import copied_wrapper, dense_tensors, is_wrapper
from tj_torch.runtime.versions import bump_version, set_version

__all__ = [
    "Functional",
    "Inverse",
    "copied_back",
    "copy_back",
    "with_strides",
    "with_value",
    "write_back",
]


@dataclass(frozen=True, slots=True)
class Functional:
    """``fn`` with its writes as results.

    ``mutated`` are the places, among the tensors in the arguments, of those that ``fn`` writes,
    ``versions``, if given, how often each of them was written before: autograd notes that of what
    it saves. The result is a tuple: their new values, then what ``fn`` returns.
    """

    fn: Callable[..., Any]

    def __call__(
        self,
        *args: Any,
        mutated: Collection[int] = (),
        versions: Collection[int] = (),
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """New values, and the result, of ``fn(*args, **kwargs)``."""
        given = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        # One tensor under two names stays one.
        copies = {id(given[i]): _copied(given[i]) for i in mutated}
        for copy, count in zip(copies.values(), versions, strict=False):
            set_version(copy, count)
        args, kwargs = map_tree(lambda t: copies.get(id(t), t), (args, kwargs), torch.Tensor)
        result = self.fn(*args, **kwargs)
        return (*copies.values(), result)


@dataclass(frozen=True, slots=True)
class Inverse:
    """What a viewed tensor is once the view that ``fn`` makes of it has another value.

    Of the tensors in the arguments, ``argument`` says which is viewed, and of those in ``fn``'s
    result ``output`` says which is the view.
    """

    fn: Callable[..., Any]

    def __call__(
        self, value: torch.Tensor, output: int, argument: int, /, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """The new value of the tensor that ``fn(*args, **kwargs)`` views."""
        given = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        viewed = given[argument]
        copy = _copied(viewed)
        args, kwargs = map_tree(lambda t: copy if t is viewed else t, (args, kwargs), torch.Tensor)
        views = [x for x in leaves(self.fn(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        views[output].copy_(value)
        if (views[output].is_conj(), views[output].is_neg()) != (copy.is_conj(), copy.is_neg()):
            return _copied(copy)  # in a body it is the conjugate of a value, not computed yet
        return copy


def with_value(identity: torch.Tensor, value: torch.Tensor, /) -> torch.Tensor:
    """``value``, which to autograd is ``identity``: what a write leaves that autograd cannot see.

    The gradient of ``identity`` is that of the result; there is none for ``value``.
    """
    result = _copied(identity)
    result.detach().copy_(value)
    return result


def with_strides(value: torch.Tensor, like: torch.Tensor, /) -> torch.Tensor:
    """``value`` laid out as ``like``, a tensor of the same shape; itself if it is so already."""
    pairs = zip(dense_tensors(value), dense_tensors(like), strict=True)
    same = value.stride() == like.stride() and all(p.stride() == q.stride() for p, q in pairs)
    if same or not is_wrapper(value):
        return value if same else _laid_out(value, like)
    return copied_wrapper(value, like, _laid_out)


def copy_back(target: torch.Tensor, value: torch.Tensor, /) -> None:
    """Write ``value`` to the memory of ``target``; autograd does not see it, no version counts."""
    target.data.copy_(value)


def copied_back(value: torch.Tensor, name: str, count: int, /) -> torch.Tensor:
    """``value``, to autograd the argument ``name`` that has it, written ``count`` times: a view."""
    return torch.ops.aten.alias.default(value)  # type: ignore[no-any-return]


def write_back(value: torch.Tensor, target: torch.Tensor, count: int, /) -> torch.Tensor:
    """``target`` with ``value`` in its memory, as autograd sees it, written ``count`` times."""
    bump_version(target, count - 1)
    return target.copy_(value)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, whatever they are."""
    if is_wrapper(tensor):
        return copied_wrapper(tensor, tensor, lambda part, _: _dense_copy(part))
    return _dense_copy(tensor)


def _dense_copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone()
    if copy.stride() == tensor.stride():
        return copy
    return _laid_out(tensor, tensor)


def _laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value)

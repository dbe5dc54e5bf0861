"""Functional forms of calls: the same operation without writes to its arguments.

``f.functional`` takes the arguments of ``f`` and returns the new values of written ones before
``f``'s result; ``f.inverse`` takes a new value of a view that ``f`` made and returns the new value
of the base. Both run ``f`` itself on copies, so that their decompositions and derivatives are read
off these functions on fake tensors, as for all operations (`tj_torch.ops`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import leaves, map_tree

from tj_torch.runtime.counters import bump_version, bump_versions, set_version
from tj_torch.runtime.subclasses import copied_wrapper, dense_tensors, is_wrapper
from tj_torch.torch_private.ops import only_data_mutated

__all__ = [
    "Functional",
    "Inverse",
    "copied_back",
    "copy_all",
    "copy_all_back",
    "copy_back",
    "with_strides",
    "with_value",
    "write_back",
]


@dataclass(frozen=True, slots=True)
class Functional:
    """``fn`` that returns new values instead of writing to its arguments.

    ``mutated`` are the positions, among the tensors in the arguments, of those that ``fn`` writes.
    ``versions``, if given, are their version counters before the call, which autograd records with
    saved tensors. The result is a tuple: the new values, then the result of ``fn``.
    """

    fn: Callable[..., Any]

    def __call__(
        self,
        *args: Any,
        mutated: Collection[int] = (),
        versions: Collection[int] = (),
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run ``fn(*args, **kwargs)`` on copies; return the new values, then its result."""
        given = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        # One copy per tensor, also for one that is passed twice.
        copies = {id(given[i]): _copied(given[i]) for i in mutated}
        for copy, count in zip(copies.values(), versions, strict=False):
            set_version(copy, count)
        args, kwargs = map_tree(lambda t: copies.get(id(t), t), (args, kwargs), torch.Tensor)
        result = self.fn(*args, **kwargs)
        return (*copies.values(), result)

    def on_fakes(self, *args: Any, mutated: Collection[int] = (), **kwargs: Any) -> tuple[Any, ...]:
        """Call on fakes that are functionalized: new values have the strides of what was written.

        A write keeps the strides of a tensor with gaps; the new values that PyTorch computes for
        one, as by `bernoulli_`, have others.
        """
        found = self(*args, mutated=mutated, **kwargs)
        given = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        pairs = zip(found, (given[i] for i in mutated), strict=False)
        kept = {
            id(value): with_strides(value, before)
            for value, before in pairs
            if value.shape == before.shape and only_data_mutated(value)
        }
        return tuple(map_tree(lambda t: kept.get(id(t), t), found, torch.Tensor))


@dataclass(frozen=True, slots=True)
class Inverse:
    """New value of a tensor after a write to the view that ``fn`` makes of it.

    ``argument`` is the position of the viewed tensor among the tensors in the arguments, ``output``
    that of the view among the tensors in ``fn``'s result.
    """

    fn: Callable[..., Any]

    def __call__(
        self, value: torch.Tensor, output: int, argument: int, /, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """New value of the tensor that ``fn(*args, **kwargs)`` views, whose view is ``value``."""
        given = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        viewed = given[argument]
        copy = _copied(viewed)
        args, kwargs = map_tree(lambda t: copy if t is viewed else t, (args, kwargs), torch.Tensor)
        views = [x for x in leaves(self.fn(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        views[output].copy_(value)
        if (views[output].is_conj(), views[output].is_neg()) != (copy.is_conj(), copy.is_neg()):
            return _copied(copy)  # in a body, `copy` is a lazy conjugate or negation: materialize
        return copy


def with_value(identity: torch.Tensor, value: torch.Tensor, /) -> torch.Tensor:
    """``value`` with the autograd history of ``identity``, as after a write through ``.data``.

    The gradient of ``identity`` is that of the result; ``value`` gets none.
    """
    result = _copied(identity)
    # `detach` shares the memory, so that the value changes and the history does not.
    result.detach().copy_(value)
    return result


def with_strides(value: torch.Tensor, like: torch.Tensor, /) -> torch.Tensor:
    """``value`` with the strides of ``like``, a tensor of the same shape; itself if they agree."""
    pairs = zip(dense_tensors(value), dense_tensors(like), strict=True)
    same = value.stride() == like.stride() and all(p.stride() == q.stride() for p, q in pairs)
    if same or not is_wrapper(value):
        return value if same else _laid_out(value, like)
    return copied_wrapper(value, like, _laid_out)


def copy_back(target: torch.Tensor, value: torch.Tensor, /) -> None:
    """Write ``value`` to the memory of ``target``, unseen by autograd and the version counter."""
    target.data.copy_(value)


def copy_all_back(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor], /) -> None:
    """`copy_back` each of ``values`` to its target, if it is another tensor."""
    for target, value in zip(targets, values, strict=True):
        if target is not value:
            copy_back(target, value)


def copy_all(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor], /) -> None:
    """Copy each of ``values`` to its target, or only count the write where it is the target."""
    if not all(map(operator.is_, targets, values)):
        pairs = [(t, v) for t, v in zip(targets, values, strict=True) if t is not v]
        for target, value in pairs:
            target.copy_(value)
        targets = [t for t, v in zip(targets, values, strict=True) if t is v]
    bump_versions(targets, 1)


def copied_back(value: torch.Tensor, name: str, count: int, /) -> torch.Tensor:
    """View of ``value`` that stands for the argument ``name``, written ``count`` times."""
    return torch.ops.aten.alias.default(value)  # type: ignore[no-any-return]


def write_back(value: torch.Tensor, target: torch.Tensor, count: int, /) -> torch.Tensor:
    """Write ``value`` to ``target`` as autograd sees it; its version goes up by ``count``."""
    # `copy_` counts as one write itself.
    bump_version(target, count - 1)
    return target.copy_(value)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy with the same strides."""
    if is_wrapper(tensor):
        return copied_wrapper(tensor, tensor, lambda part, _: _dense_copy(part))
    return _dense_copy(tensor)


def _dense_copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone()
    # `clone` keeps the strides of dense tensors only: for one with gaps they are contiguous.
    if copy.stride() == tensor.stride():
        return copy
    return _laid_out(tensor, tensor)


def _laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value)

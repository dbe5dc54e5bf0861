"""One call of an operation, and calls like it: with other values, other sizes, special values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import strides_overlap
from torch.utils import _pytree as pytree

from tj_conformance.oracle.twins import clone_tree

__all__ = ["SPECIAL_VALUES", "Call", "tensors"]


@dataclass(frozen=True)
class Call:
    """The arguments of a call; those that ``run`` s with gradients differentiate require one."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def twins(self, grad: bool) -> Call:
        """Copies, in the same layout, that require gradients as the originals do if ``grad``."""
        args, kwargs = clone_tree((self.args, dict(self.kwargs)))
        if not grad:
            args, kwargs = pytree.tree_map_only(torch.Tensor, _detached, (args, kwargs))
        return Call(args, kwargs)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Call:
        """The same call on what ``change`` makes of each tensor."""

        def each(x: torch.Tensor) -> torch.Tensor:
            return change(x.detach()).requires_grad_(x.requires_grad)

        args, kwargs = pytree.tree_map_only(torch.Tensor, each, (self.args, dict(self.kwargs)))
        return Call(args, kwargs)

    def other(self) -> Call:
        """The call with other values in the same layout: half of each number."""
        return self.twins(grad=True).written(_halve)

    def filled(self, fill: Callable[[torch.Tensor], object]) -> Call:
        """The call with other values in floating-point tensors, which ``fill`` writes."""
        return self.twins(grad=True).written(lambda x: fill(x) if _is_real(x) else None)

    def written(self, write: Callable[[torch.Tensor], object]) -> Call:
        """This call, after ``write`` of each of its tensors."""
        with torch.no_grad():
            for x in tensors(self):
                write(x)
        return self

    def resized(self, times: int) -> Call:
        """The call on tensors ``times`` as long, those as long as the first one."""
        first = next((x for x in tensors(self) if x.dim()), None)
        if first is None:
            return self
        return self.changed(lambda x: _repeated(x, times) if _as_long(x, first) else x)

    def swapped(self, values: Mapping[int, torch.Tensor]) -> Call:
        """The call with other tensors in the places of some, by the `id` of these."""

        def each(x: torch.Tensor) -> torch.Tensor:
            return values.get(id(x), x)

        return Call(*pytree.tree_map_only(torch.Tensor, each, (self.args, dict(self.kwargs))))

    @property
    def differentiable(self) -> bool:
        """True if an argument requires a gradient."""
        return any(x.requires_grad for x in tensors(self))

    @property
    def shared(self) -> bool:
        """True if an argument shares its own memory, so that nothing can be written to it."""
        return any(_overlaps(x) for x in tensors(self))


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The distinct tensors in ``tree``, which may be a `Call`."""
    leaves = pytree.tree_leaves((tree.args, dict(tree.kwargs)) if isinstance(tree, Call) else tree)
    yield from {id(x): x for x in leaves if isinstance(x, torch.Tensor)}.values()


def _detached(x: torch.Tensor) -> torch.Tensor:
    return x.detach() if x.requires_grad else x


def _is_real(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.layout is torch.strided and not _overlaps(x)


def _halve(x: torch.Tensor) -> None:
    if x.layout is not torch.strided or x.dtype is torch.bool or _overlaps(x):
        return
    if x.is_floating_point() or x.is_complex():
        x.mul_(0.5)
    else:
        x.div_(2, rounding_mode="trunc")  # an index stays one


def _overlaps(x: torch.Tensor) -> bool:
    strided = x.layout is torch.strided and x.numel() > 0
    return strided and strides_overlap(x.shape, x.stride())


def _as_long(x: torch.Tensor, first: torch.Tensor) -> bool:
    return x.dim() > 0 and x.shape[0] == first.shape[0] and x.layout is torch.strided


def _repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    return torch.cat([x] * times)


def _first_as(value: float) -> Callable[[torch.Tensor], object]:
    def fill(x: torch.Tensor) -> None:
        if x.numel():
            x[(0,) * x.dim()] = value

    return fill


SPECIAL_VALUES: Mapping[str, Callable[[torch.Tensor], object]] = {
    "zeros": lambda x: x.fill_(0),
    "negative zeros": lambda x: x.fill_(-0.0),
    "ones": lambda x: x.fill_(1),
    "positive": lambda x: x.abs_().add_(0.5),
    "negative": lambda x: x.abs_().add_(0.5).neg_(),
    "large": lambda x: x.mul_(50),
    "small": lambda x: x.mul_(1e-3),
    "infinite": _first_as(float("inf")),
    "nan": _first_as(float("nan")),
}
"""Values that kernels treat apart, by name: functions that write them to a tensor."""

"""Guards on tensor subclasses: their classes have the same methods, which Dynamo does not guard."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tj_torch.guards.guard import Guards
from tj_torch.guards.members import guard_methods, is_pytorchs

__all__ = ["methods_check", "own_bases"]


def own_bases(kind: type) -> list[type]:
    """Classes before `torch.Tensor` in the resolution order of ``kind``, except PyTorch's."""
    # From `torch.Tensor` on the methods are PyTorch's.
    before = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    return [base for base in before if not is_pytorchs(base)]


def methods_check(values: Iterable[Any]) -> Callable[[], bool] | None:
    """Check that the classes of the tensors in ``values`` have the same methods as now.

    None if there is nothing to check.
    """
    guards = Guards()
    kinds = {type(value): None for value in values if isinstance(value, torch.Tensor)}
    guard_methods(guards, dict.fromkeys(base for kind in kinds for base in own_bases(kind)))
    return guards.check()

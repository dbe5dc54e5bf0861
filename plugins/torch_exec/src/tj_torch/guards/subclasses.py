"""Guards on tensor subclasses, which Dynamo leaves out: methods, and what these read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tj_torch.guards.guard import Guards
from tj_torch.guards.members import guard_methods, is_pytorchs
from tj_torch.ops.fakes.read_state import reads

__all__ = ["guard_subclasses", "methods_check", "own_bases"]


def own_bases(kind: type) -> list[type]:
    """Classes before `torch.Tensor` in the resolution order of ``kind``, except PyTorch's."""
    # From `torch.Tensor` on the methods are PyTorch's.
    before = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    return [base for base in before if not is_pytorchs(base)]


def methods_check(values: Iterable[Any]) -> Callable[[], bool] | None:
    """Check that the classes of the tensors in ``values`` do the same as now.

    None if there is nothing to check.
    """
    guards = Guards()
    kinds = {type(value): None for value in values if isinstance(value, torch.Tensor)}
    guard_subclasses(guards, dict.fromkeys(base for kind in kinds for base in own_bases(kind)))
    return guards.check()


def guard_subclasses(guards: Guards, classes: Iterable[type]) -> None:
    """Guard that ``classes`` have the same methods, and that these read the same values."""
    classes = list(classes)
    guard_methods(guards, classes)
    # A class and its bases have methods, and so values, in common.
    found = {(read.term, id(read.owner)): read for cls in classes for read in reads(cls)}
    for read in found.values():
        now = read.term.format(owner=guards.bind("r", read.owner))
        value = guards.bind("v", read.value)
        same = guards.bind("same", read.same)
        guards.add(f"({now} is {value} or {same}({now}, {value}))", text=read.text)

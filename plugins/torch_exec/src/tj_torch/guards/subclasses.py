"""Guards on tensor subclasses, which Dynamo leaves out: methods, and what these read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tj_torch.guards.guard import Guards
from tj_torch.guards.members import guard_methods, is_pytorchs
from tj_torch.ops.fakes.read_places import CONTAINERS, PLAIN, kept, same_part
from tj_torch.ops.fakes.read_state import reads, reads_of
from tj_torch.runtime.subclasses import is_wrapper

__all__ = ["guard_subclasses", "methods_check", "own_bases", "same_attributes"]

_COMPARED = (*PLAIN, *CONTAINERS)


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


def same_attributes(tensor: torch.Tensor) -> Callable[[torch.Tensor], bool] | None:
    """Check of another tensor for the same numbers and the like in attributes that handlers read.

    None if there are no such attributes.
    """
    bases = own_bases(type(tensor))
    names, known = _attributes(tensor)
    data = {n for base in bases for n, m in vars(base).items() if isinstance(m, PLAIN)}
    if not known and names.isdisjoint(("getattr", "hasattr", *data)):
        return None
    others = names - (vars(tensor).keys() - known.keys())

    def same(other: torch.Tensor) -> bool:
        found = vars(other)
        same_names = found.keys() & others == known.keys()
        return same_names and all(same_part(found[name], value) for name, value in known.items())

    return same


def lost_attribute(tensor: torch.Tensor, copy: torch.Tensor) -> str | None:
    """The first attribute that handlers read of ``tensor`` and that its ``copy`` has not; or None.

    It may be one of a tensor inside of it.
    """
    if type(copy) is not type(tensor) or not is_wrapper(tensor):
        return None
    _, known = _attributes(tensor)
    for name, value in known.items():
        if name not in vars(copy) or not same_part(vars(copy)[name], value):
            return f"{type(tensor).__qualname__}.{name}"
    parts, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    lost = (lost_attribute(getattr(tensor, name), getattr(copy, name)) for name in parts)
    return next(filter(None, lost), None)


def _attributes(tensor: torch.Tensor) -> tuple[frozenset[str], dict[str, Any]]:
    """Names that handlers read of any object, and what ``tensor`` has of these beside its parts.

    Objects are made anew for each tensor, and compared as part of its context if at all.
    """
    parts, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    names = reads_of(own_bases(type(tensor))).names.difference(parts)
    known = {name: kept(value) for name, value in vars(tensor).items() if name in names}
    return names, {name: value for name, value in known.items() if isinstance(value, _COMPARED)}

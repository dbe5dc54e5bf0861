"""Guards on tensor subclasses, which Dynamo leaves out: methods, and what these read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tj_torch.guards.guard import Guards
from tj_torch.guards.members import guard_methods, is_pytorchs
from tj_torch.ops.fakes.read_places import CONTAINERS, PLAIN, elements_of, kept, same_part
from tj_torch.ops.fakes.read_state import Reads, reads, reads_of
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
    found = {read.place: read for cls in classes for read in reads(cls)}
    spaces = {id(read.owner): read.space for read in found.values()}
    for read in found.values():
        space = spaces[id(read.owner)]
        now = read.code(guards.bind("r", space))
        # What is absent is the default of the look-up.
        value = guards.bind("v", space if read.value is read.owner else read.value)
        same = guards.bind("same", read.same)
        guards.add(f"({now} is {value} or {same}({now}, {value}))", text=read.text)


def same_attributes(tensor: torch.Tensor) -> Callable[[torch.Tensor], bool] | None:
    """Check of another tensor for the same numbers and the like in attributes that handlers read.

    None if it has no such attributes.
    """
    bases = own_bases(type(tensor))
    found, known = _attributes(tensor)
    known = _beside_context(tensor, known)
    data = {n for base in bases for n, m in vars(base).items() if isinstance(m, PLAIN)}
    absent = (found.names & data | found.asked) - vars(tensor).keys()
    if not known and not absent:
        return None
    guards = Guards(["tensor"])
    own, same, missing = (
        "tensor.__dict__",
        guards.bind("same", same_part),
        guards.bind("m", object()),
    )
    if absent:
        guards.add(f"{guards.bind('absent', absent)}.isdisjoint({own})")
    for name, value in known.items():
        now, before = f"{own}.get({name!r}, {missing})", guards.bind("v", value)
        guards.add(f"({now} is {before} or {same}({now}, {before}))")
    return guards.check()


def _beside_context(tensor: torch.Tensor, known: dict[str, Any]) -> dict[str, Any]:
    """The attributes ``known`` of a tensor, but for those that its context has, with a guard."""
    parts, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    own = {name: value for name, value in vars(tensor).items() if name not in parts}
    in_context, on_tensor = Counter(_ids(context)), Counter(map(id, own.values()))
    # A number in the context may be another one's that is equal.
    lacking = {n for n in known if in_context[id(own[n])] < on_tensor[id(own[n])]}
    return {name: known[name] for name in lacking}


def _ids(context: Any, depth: int = 0) -> Iterator[int]:
    """Ids of a context, and of what is in its containers."""
    yield id(context)
    if isinstance(context, CONTAINERS) and depth < 2:
        for element in elements_of(context):
            yield from _ids(element, depth + 1)


def lost_attribute(tensor: torch.Tensor, copy: torch.Tensor) -> str | None:
    """The first attribute that handlers read of ``tensor`` and that its ``copy`` has not; or None.

    A tensor inside of it may have lost the attribute.
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


def _attributes(tensor: torch.Tensor) -> tuple[Reads, dict[str, Any]]:
    """State that handlers read, and attributes that ``tensor`` has of it beside its parts.

    Objects are made anew for each tensor, and compared as part of its context if at all.
    """
    parts, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    found = reads_of(own_bases(type(tensor)))
    names = found.names.difference(parts)
    known = {name: kept(value) for name, value in vars(tensor).items() if name in names}
    return found, {name: value for name, value in known.items() if isinstance(value, _COMPARED)}

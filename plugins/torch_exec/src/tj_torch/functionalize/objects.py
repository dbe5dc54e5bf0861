"""The objects of an acquired program as PyTorch's autograd sees them: version counters, views.

What shares memory, and by which views, is the core's alias analysis. Places are only ever those of
the acquired program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import (
    Alias,
    BoundSymbol,
    Constant,
    Dim,
    Place,
    Proxy,
    Source,
    Storage,
    TensorProxy,
    Trace,
    ViewStep,
    leaves,
    may_overlap,
    requires_grad,
)

from tj_torch.ops.sizes.program import is_dense

__all__ = [
    "DATA",
    "Objects",
    "Unsuitable",
    "cuts_gradients",
    "goes_by_memory",
    "is_metadata_change",
    "overlaps_itself",
    "reads_data",
    "refuses_writes",
    "span",
    "strided_beyond",
    "tensor_place",
]

_STRIDED = re.compile(r"(^|\.)as_strided(_|_copy|_scatter)?(\.default)?$")

DATA = "_C._autograd._get_data_attr"
"""``x.data``: a view that does not share the version counter, which capture leaves unexpanded."""


class Unsuitable(Exception):
    """The program's writes cannot be made values of; it has to run as it is written."""

    def __init__(self, reason: str, source: Source | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source


@dataclass
class Objects(Storage):
    """The objects of a program so far, with what PyTorch's autograd knows of them.

    ``counter`` says which version counter an object has, ``bumps`` counts the writes that each
    counter has seen; ``passed`` are objects that autograd refuses to be used since their memory was
    written.
    """

    counter: dict[str, str] = field(default_factory=dict)
    bumps: dict[str, int] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)

    def begin(self, p: Proxy) -> None:
        """``p`` is new memory."""
        super().begin(p)
        self.counter[p.name] = p.name

    def define(self, p: Proxy, call: BoundSymbol, aliases: Sequence[Alias]) -> None:
        """Add ``p``, an output of ``call``, if it is a tensor. It counts writes as its base does.

        ``x.data`` is a view that counts its own.
        """
        if not isinstance(p, TensorProxy):
            return
        super().define(p, call, [Alias(0, "arg", 0)] if reads_data(call) else aliases)
        place = self.places.get(p.name)
        if place and place.path and not reads_data(call):
            viewed = call.flat_args[place.path[-1].argument]
            self.counter[p.name] = self.counter[self.names[viewed.name]]

    def place(self, p: Proxy) -> Place:
        """Where ``p`` is now.

        :raises Unsuitable: if it may be a view of one value or of another.
        """
        found = self.places.get(self.names[p.name])
        if found is None:
            raise Unsuitable(f"it is not known what {p.name} is a view of")
        return found

    def counters(self, root: str) -> set[str]:
        """The version counters that objects with this root have."""
        return {self.counter[name] for name, place in self.places.items() if place.root == root}

    def bump(self, p: Proxy, count: int) -> int:
        """``p`` was written, which is counted ``count`` times; that."""
        counter = self.counter[self.names[p.name]]
        self.bumps[counter] = self.bumps.get(counter, 0) + count
        if count:
            self.passed |= {
                name
                for name, place in self.places.items()
                if self.counter[name] == counter and any(map(refuses_writes, place.path))
            }
        return count

    def check_use(self, used: Iterable[Any]) -> None:
        """Look at values that a call takes, or that are returned.

        :raises Unsuitable: if autograd refuses that.
        """
        for p in used:
            if requires_grad(p) and self.names.get(p.name) in self.passed:
                raise Unsuitable("a view is used that autograd refuses since it was written")

    def check_counted(
        self, call: BoundSymbol, inputs: Container[str], mutated: Container[str]
    ) -> None:
        """Look at the arguments of a call that autograd may save; ``mutated`` are roots.

        What changes the metadata of an input is counted as a write, and done again once the
        functional program has run: to autograd, what it saved of that memory is then no more.

        :raises Unsuitable: if the call came after the change.
        """
        if any(a.kind == "arg" for a in call.effects.aliases):
            return
        for i, p in enumerate(call.flat_args):
            name = self.names.get(p.name)
            if name is None or i in call.effects.mutates or not self.bumps.get(self.counter[name]):
                continue
            root = self.place(p).root
            if root in inputs and root not in mutated:
                raise Unsuitable("an input is used after a change of its metadata")


def cuts_gradients(step: ViewStep) -> bool:
    """Whether autograd does not see through the view."""
    return step.call.symbol.name == "detach" or reads_data(step.call)


def refuses_writes(step: ViewStep) -> bool:
    """Whether autograd refuses to use the view once its memory is written: one of several that a
    call made, or one made without gradients.
    """
    several = isinstance(step.call.outputs, tuple | list)
    return several or step.call.context.get("grad") is False


def reads_data(call: BoundSymbol) -> bool:
    """Whether ``call`` is ``x.data``, however it was captured."""
    return call.symbol.name == DATA or (
        call.symbol.qualname == "builtins.getattr" and call.args[1:] == ("data",)
    )


def is_metadata_change(call: BoundSymbol, index: int) -> bool:
    """Whether ``call`` changes the shape, strides or the like of argument ``index``.

    A write may make its argument require a gradient; that is no such change.
    """
    return index not in call.effects.mutates


def overlaps_itself(p: Proxy) -> bool:
    """Whether two indices of ``p`` may be one element; sizes that are symbols are taken at hint."""
    assert isinstance(p, TensorProxy)
    return may_overlap(p.map_symbols(_hint))


def span(shape: Iterable[int], strides: Iterable[int]) -> int:
    """How many elements of memory there are from the first to the last one of a tensor."""
    pairs = list(zip(shape, strides, strict=True))
    return 1 + sum(t * (n - 1) for n, t in pairs) if all(n for n, _ in pairs) else 0


def _hint(dim: Dim) -> int:
    return dim if isinstance(dim, int) else int(dim.hint or 0)


def goes_by_memory(call: BoundSymbol, objects: Objects, given: Container[str]) -> str | None:
    """Why ``call``, if it is an ``as_strided``, is no function of the value it takes, or None.

    It goes by memory: an offset counts from where the storage begins, which for a root in
    ``given`` only the caller knows, and steps may lead to elements that are not in the tensor.
    """
    viewed = call.flat_args[0] if call.flat_args else None
    if not _STRIDED.search(call.symbol.path) or not isinstance(viewed, TensorProxy):
        return None
    place = objects.places.get(objects.object_of(viewed))
    size, stride, offset = _strided_as(call)
    if not is_dense(viewed):
        return f"{call.symbol} is given a tensor with gaps in its memory"
    if offset is not None and (place is None or place.root in given or place.path):
        return f"{call.symbol} counts from the beginning of memory that it was not given"
    if not all(isinstance(n, int) for n in (*size, *stride, *viewed.shape)):
        return f"{call.symbol} is given sizes that differ from call to call"
    length = span(size, stride)
    if length and (offset or 0) + length > math.prod(map(_hint, viewed.shape)):
        return f"{call.symbol} reaches beyond the tensor that it is given"
    return None


def strided_beyond(trace: Trace, known: Container[str] = ()) -> tuple[str, BoundSymbol] | None:
    """The first ``as_strided`` of a trace that goes by memory, and why, except of ``known``."""
    if not any(_STRIDED.search(call.symbol.path) for call in trace.calls):
        return None
    objects, given = Objects(), {p.name for p in trace.inputs}
    for p in trace.inputs:
        objects.begin(p)
    for call in trace.calls:
        problem = goes_by_memory(call, objects, given)
        if problem and not any(p.name in known for p in call.flat_outs):
            return problem, call
        objects.note(call)
    return None


def _strided_as(call: BoundSymbol) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Sizes, strides and offset (None: that of the argument) of an ``as_strided``."""
    names = ("size", "stride", "storage_offset")
    given = [a for a in call.args if not isinstance(a, TensorProxy)]
    said = {**dict(zip(names, given, strict=False)), **dict(call.kwargs)}
    return said["size"], said["stride"], said.get("storage_offset")


def tensor_place(call: BoundSymbol, index: int) -> int:
    """Where argument ``index`` (counted in proxies) is among the tensors that the call is given."""
    return next(at for at, i in enumerate(_tensor_indices(call)) if i == index)


def _tensor_indices(call: BoundSymbol) -> Iterator[int | None]:
    index = -1
    for leaf in leaves((call.args, call.kwargs)):
        index += isinstance(leaf, Proxy)
        if isinstance(leaf, TensorProxy):
            yield index
        elif isinstance(leaf, Constant) and isinstance(leaf.value, torch.Tensor):
            yield None

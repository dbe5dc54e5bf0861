"""Which object a value is, and how its memory is reached: what the effects of calls say.

A *root* is memory that a program was given or made; every object is a root's own tensor or what a
path of view calls makes of it. Places are only ever those of the acquired program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    Constant,
    Dim,
    Proxy,
    Source,
    TensorProxy,
    Trace,
    leaves,
    requires_grad,
)

from tj_torch.ops.sizes.program import is_dense

__all__ = [
    "DATA",
    "Objects",
    "Place",
    "Step",
    "Unsuitable",
    "goes_by_memory",
    "is_metadata_change",
    "overlaps_itself",
    "reads_data",
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


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One call on the way from a root to an object: of the tensors it takes, ``argument`` is
    viewed (by flat index of the call's arguments), and output ``output`` is the view.
    """

    call: BoundSymbol
    argument: int
    output: int

    @property
    def key(self) -> tuple[int, int]:
        """Equal for the same output of the same call."""
        return id(self.call), self.output

    @property
    def detaches(self) -> bool:
        """Whether autograd does not see through the view."""
        return self.call.symbol.name == "detach" or reads_data(self.call)

    @property
    def passes(self) -> bool:
        """Whether autograd refuses to use the view once its memory is written: one of several
        that a call made, or one made without gradients.
        """
        several = isinstance(self.call.outputs, tuple | list)
        return several or self.call.context.get("grad") is False


@dataclass(frozen=True, slots=True)
class Place:
    """A root, by the name of its value in the program, and the path from it.

    Writes bump the counter of versions that is called ``counter``.
    """

    root: str
    path: tuple[Step, ...] = ()
    counter: str = ""

    @property
    def keys(self) -> tuple[tuple[int, int], ...]:
        """Equal for the same path."""
        return tuple(step.key for step in self.path)


@dataclass
class Objects:
    """The objects of a program so far: names to objects, objects to places.

    An object is known by the first name it had. ``bumps`` counts the writes that each counter of
    versions has seen; ``internal`` are roots that are views of memory inside of a call, ``passed``
    objects that autograd refuses to be used since their memory was written.
    """

    names: dict[str, str] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    bumps: dict[str, int] = field(default_factory=dict)
    internal: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)

    def root(self, p: Proxy) -> None:
        """``p`` is new memory."""
        self.names[p.name] = p.name
        self.places[p.name] = Place(p.name, (), p.name)

    def place(self, p: Proxy) -> Place:
        """Where ``p`` is now."""
        return self.places[self.names[p.name]]

    def counters(self, root: str) -> set[str]:
        """The counters of versions that objects with this root have."""
        return {place.counter for place in self.places.values() if place.root == root}

    def bump(self, p: Proxy, count: int) -> int:
        """``p`` was written, which is counted ``count`` times; that."""
        counter = self.place(p).counter
        self.bumps[counter] = self.bumps.get(counter, 0) + count
        if count:
            places = self.places.items()
            self.passed |= {
                name
                for name, place in places
                if place.counter == counter and any(step.passes for step in place.path)
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
            place = self.places.get(self.names.get(p.name, ""))
            if place is None or i in call.effects.mutates or not self.bumps.get(place.counter):
                continue
            if place.root in inputs and place.root not in mutated:
                raise Unsuitable("an input is used after a change of its metadata")

    def note(self, call: BoundSymbol, rebinding: Step | None = None) -> None:
        """The outputs of ``call``, and the object it changes the metadata of by ``rebinding``.

        :raises Unsuitable: if it returns several views of memory that it does not take.
        """
        known = {p.name for p in call.flat_args}
        aliases = {a.output: a for a in call.effects.aliases}
        for i, p in enumerate(call.flat_outs):
            alias = aliases.get(i)
            if p.name in known or not isinstance(p, TensorProxy):
                continue
            if reads_data(call):
                self._view(p, Step(call, 0, 0), call.flat_args[0], counter=p.name)
            elif alias is None or alias.kind == "internal":
                self.root(p)
                self.internal |= {p.name} if alias else set()
            elif alias.kind == "out":
                self._second(p, call, call.flat_outs[alias.index], identical=alias.identical)
            elif alias.identical:
                self.names[p.name] = self.names[call.flat_args[alias.index].name]
            else:
                self._view(p, Step(call, alias.index, i), call.flat_args[alias.index])
        if rebinding is not None:
            name = self.names[call.flat_args[rebinding.argument].name]
            at = self.places[name]
            self.places[name] = Place(at.root, (*at.path, rebinding), at.counter)

    def _view(self, p: Proxy, step: Step, viewed: Proxy, counter: str | None = None) -> None:
        at = self.place(viewed)
        self.names[p.name] = p.name
        self.places[p.name] = Place(at.root, (*at.path, step), counter or at.counter)

    def _second(self, p: Proxy, call: BoundSymbol, first: Proxy, *, identical: bool) -> None:
        if not identical:
            raise Unsuitable(f"{call.symbol} returns two views of one memory")
        self.names[p.name] = self.names[first.name]


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
    last = 0
    pairs = zip(map(_hint, p.strides), map(_hint, p.shape), strict=True)
    for stride, size in sorted(pair for pair in pairs if pair[1] > 1):
        if stride <= last:
            return True
        last += stride * (size - 1)
    return False


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
    place = objects.place(viewed)
    size, stride, offset = _strided_as(call)
    if not is_dense(viewed):
        return f"{call.symbol} is given a tensor with gaps in its memory"
    if offset is not None and (place.root in given or place.path):
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
        objects.root(p)
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

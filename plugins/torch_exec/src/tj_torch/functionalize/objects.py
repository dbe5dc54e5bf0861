"""Objects of an acquired program with their version counters and views, as in autograd.

The core's alias analysis tells which objects share memory, and through which views. All places are
those of the acquired program.
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
    Proxy,
    Source,
    TensorProxy,
    Trace,
    leaves,
    may_overlap,
    requires_grad,
)
from tj_core.internal import Place, Storage, ViewStep

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
"""``x.data`` as captured and not expanded: a view with a version counter of its own."""


class Unsuitable(Exception):
    """The program cannot be made functional, and has to run as acquired."""

    def __init__(self, reason: str, source: Source | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source


@dataclass
class Objects(Storage):
    """Objects of a program so far, with their state in PyTorch's autograd.

    ``counter`` has the version counter of each object, ``bumps`` the value of each counter;
    ``passed`` are objects whose use autograd refuses, since their memory was written.
    """

    counter: dict[str, str] = field(default_factory=dict)
    bumps: dict[str, int] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)

    def begin(self, p: Proxy) -> None:
        """Add ``p``, which is new memory."""
        super().begin(p)
        self.counter[p.name] = p.name

    def define(self, p: Proxy, call: BoundSymbol, aliases: Sequence[Alias]) -> None:
        """Add ``p``, an output of ``call``, if it is a tensor; a view shares its base's counter.

        ``x.data`` is a view with a counter of its own.
        """
        if not isinstance(p, TensorProxy):
            return
        # Views and `x.detach()` share the version counter of `x`; that of `x.data` is its own.
        super().define(p, call, [Alias(0, "arg", 0)] if reads_data(call) else aliases)
        place = self.places.get(p.name)
        if place and place.path and not reads_data(call):
            viewed = call.flat_args[place.path[-1].argument]
            self.counter[p.name] = self.counter[self.names[viewed.name]]

    def place(self, p: Proxy) -> Place:
        """Current place of ``p``.

        :raises Unsuitable: if it may be a view of either of several values.
        """
        found = self.places.get(self.names[p.name])
        if found is None:
            raise Unsuitable(f"it is not known what {p.name} is a view of")
        return found

    def counters(self, root: str) -> set[str]:
        """Version counters of the objects with this root."""
        return {self.counter[name] for name, place in self.places.items() if place.root == root}

    def bump(self, p: Proxy, count: int) -> int:
        """Count a write to ``p`` as ``count`` bumps, and return ``count``."""
        counter = self.counter[self.names[p.name]]
        self.bumps[counter] = self.bumps.get(counter, 0) + count
        if count:
            # "Output 0 of Unbind is a view and its base or another view of its base has been
            # modified inplace", and a text of its own for views made under no_grad: PyTorch raises
            # at the view's next use. Any other view gets a new `grad_fn`, AsStridedBackward.
            self.passed |= {
                name
                for name, place in self.places.items()
                if self.counter[name] == counter and any(map(refuses_writes, place.path))
            }
        return count

    def check_use(self, used: Iterable[Any]) -> None:
        """Check values that a call takes, or that the program returns.

        :raises Unsuitable: if autograd refuses the use of one of them.
        """
        for p in used:
            if requires_grad(p) and self.names.get(p.name) in self.passed:
                raise Unsuitable("a view is used that autograd refuses since it was written")

    def check_counted(
        self, call: BoundSymbol, inputs: Container[str], mutated: Container[str]
    ) -> None:
        """Check the arguments of a call that autograd may save; ``mutated`` are roots.

        A change of an input's metadata counts as a write, and is repeated after the functional
        program has run. That would invalidate tensors which autograd saved of that memory.

        :raises Unsuitable: if the call came after such a change.
        """
        if any(a.kind == "arg" for a in call.effects.aliases):
            return
        for i, p in enumerate(call.flat_args):
            name = self.names.get(p.name)
            if name is None or i in call.effects.mutates or not self.bumps.get(self.counter[name]):
                continue
            # `x.t_()` bumps `x._version` as a write does: a backward that saved `x` before raises
            # "modified by an inplace operation", though no element has changed.
            root = self.place(p).root
            if root in inputs and root not in mutated:
                raise Unsuitable("an input is used after a change of its metadata")


def cuts_gradients(step: ViewStep) -> bool:
    """Test for a view that cuts the gradient: ``detach`` or ``.data``."""
    return step.call.symbol.name == "detach" or reads_data(step.call)


def refuses_writes(step: ViewStep) -> bool:
    """Test for a view that autograd refuses to use once its memory is written.

    Such a view is one of several from one call, or was made under ``no_grad``.
    """
    # `creation_meta` in PyTorch: MULTI_OUTPUT_NODE and NO_GRAD_MODE.
    several = isinstance(step.call.outputs, tuple | list)
    return several or step.call.context.get("grad") is False


def reads_data(call: BoundSymbol) -> bool:
    """Test for a call of ``x.data`` in any captured form."""
    return call.symbol.name == DATA or (
        call.symbol.qualname == "builtins.getattr" and call.args[1:] == ("data",)
    )


def is_metadata_change(call: BoundSymbol, index: int) -> bool:
    """Test if ``call``, which rebinds argument ``index``, changes its shape, strides or the like.

    A write also rebinds an argument that thereby comes to require grad; that is no change of
    metadata.
    """
    return index not in call.effects.mutates


def overlaps_itself(p: Proxy) -> bool:
    """Test if two indices of ``p`` may be the same element; symbolic sizes count as their hints."""
    assert isinstance(p, TensorProxy)
    return may_overlap(p.map_symbols(_hint))


def span(shape: Iterable[int], strides: Iterable[int]) -> int:
    """Number of elements of memory from the first to the last one of a tensor."""
    pairs = list(zip(shape, strides, strict=True))
    # A tensor without elements reaches no memory, whatever its strides.
    return 1 + sum(t * (n - 1) for n, t in pairs) if all(n for n, _ in pairs) else 0


def _hint(dim: Dim) -> int:
    return dim if isinstance(dim, int) else int(dim.hint or 0)


def goes_by_memory(call: BoundSymbol, objects: Objects, given: Container[str]) -> str | None:
    """Reason why an ``as_strided`` is no function of its argument's value; None if it is.

    The result depends on memory: an offset counts from the start of the storage, which for a root
    in ``given`` only the caller knows, and strides may reach elements outside of the tensor.
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
    # A size of zero reads nothing, wherever it starts.
    length = span(size, stride)
    if length and (offset or 0) + length > math.prod(map(_hint, viewed.shape)):
        return f"{call.symbol} reaches beyond the tensor that it is given"
    return None


def strided_beyond(trace: Trace, known: Container[str] = ()) -> tuple[str, BoundSymbol] | None:
    """Reason and call of the first ``as_strided`` that depends on memory, except of ``known``."""
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
    """Sizes, strides and offset of an ``as_strided``; offset None means the argument's own."""
    names = ("size", "stride", "storage_offset")
    given = [a for a in call.args if not isinstance(a, TensorProxy)]
    said = {**dict(zip(names, given, strict=False)), **dict(call.kwargs)}
    return said["size"], said["stride"], said.get("storage_offset")


def tensor_place(call: BoundSymbol, index: int) -> int:
    """Position of argument ``index`` (counted in proxies) among the tensors in the arguments."""
    return next(at for at, i in enumerate(_tensor_indices(call)) if i == index)


def _tensor_indices(call: BoundSymbol) -> Iterator[int | None]:
    index = -1
    for leaf in leaves((call.args, call.kwargs)):
        index += isinstance(leaf, Proxy)
        if isinstance(leaf, TensorProxy):
            yield index
        elif isinstance(leaf, Constant) and isinstance(leaf.value, torch.Tensor):
            yield None

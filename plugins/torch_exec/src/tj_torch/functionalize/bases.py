"""Replace arguments that share memory by views of one base, for one input-aliasing pattern.

The base starts where the memory starts. The rewritten program writes to views of it, so later
passes need not know that arguments share memory. Values of an argument are read off the base, and
new values are copied to memory through the argument itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    NO_TAGS,
    BoundSymbol,
    Expand,
    Proxy,
    RuleTable,
    Symbol,
    Tag,
    TagSet,
    TensorProxy,
    TjError,
    Trace,
    TraceEditor,
    bind_outputs,
)

from tj_torch.functionalize.objects import Unsuitable, span
from tj_torch.ops.sizes.program import is_dense
from tj_torch.torch_private.ops import base_of

if TYPE_CHECKING:
    from tj_core.internal import Recompiler

    from tj_torch.guards.overlap import Group

__all__ = ["MEMBER", "MEMORY", "compiled", "given_bases", "members", "overlap", "with_bases"]

MEMBER = Tag(
    "MEMBER",
    "an argument that shares memory with others; the value names its view of their base",
    carriers=frozenset({"proxy"}),
    into_body=False,
    to_replacement=False,
)

MEMORY = Tag(
    "MEMORY",
    "a base of arguments that share memory unknown to autograd: each MEMBER of it has a version "
    "counter of its own",
    carriers=frozenset({"proxy"}),
    into_body=False,
    to_replacement=False,
)

AS_STRIDED = Symbol("torch", "as_strided")

LARGE = 1 << 26
"""Elements of memory beyond which arguments are assumed to overlap, without a check."""

FAR = 4
"""Greatest ratio of a base's length to the part that the arguments span."""


def members(trace: Trace) -> dict[str, str]:
    """Names of the arguments that are members of a base, by the names of their views of it."""
    return {str(p.tags[MEMBER.name]): p.name for p in trace.inputs if MEMBER.name in p.tags}


def overlap(trace: Trace, group: Group) -> bool:
    """Test for an element that two of the group's arguments share."""
    tensors = [_tensor(trace.inputs[i]) for i in group.places]
    extent = length(trace, group)
    # `seen` has a byte for each element.
    if extent > LARGE:
        return True
    seen = torch.zeros(extent, dtype=torch.bool)
    for p, offset in zip(tensors, group.offsets, strict=True):
        part = seen.as_strided(_numbers(p.shape), _numbers(p.strides), offset)
        if part.any():
            return True
        part.fill_(True)
    return False


def compiled(
    trace: Trace,
    groups: Sequence[Group],
    expand: RuleTable[Expand],
    recompiler: Recompiler,
    name: str,
) -> Callable[..., Any]:
    """Compile ``trace`` for arguments that share memory as in ``groups``.

    :raises Unsuitable: if the program with bases cannot be made functional.
    """
    made = recompiler.compiled(with_bases(trace, groups, expand))
    if "epilogue" not in made.others:
        raise Unsuitable("the program with bases cannot be made functional")
    recompiler.show(name, made)
    return given_bases(made.function, groups, [length(trace, group) for group in groups])


def given_bases(
    run: Callable[..., Any], groups: Sequence[Group], lengths: Sequence[int]
) -> Callable[..., Any]:
    """Wrap ``run`` to append the bases of groups to its arguments, unless they are arguments.

    For a group that only shares memory, the base is a tensor of the first elements of that memory,
    as many as ``lengths`` says.
    """
    wanted = [(g, n) for g, n in zip(groups, lengths, strict=True) if g.base is None]
    if not wanted:
        return run

    def computation(*args: Any) -> Any:
        bases = [_base(args[group.places[0]], group, length) for group, length in wanted]
        return run(*args, *bases)

    return computation


def _base(first: torch.Tensor, group: Group, length: int) -> torch.Tensor:
    # The offset of `as_strided` counts from the start of the storage, whatever that of `first` is.
    return base_of(first) if group.geometry else first.detach().as_strided((length,), (1,), 0)


def with_bases(trace: Trace, groups: Sequence[Group], expand: RuleTable[Expand]) -> Trace:
    """``trace`` with the arguments of each group as views of a base.

    Bases that are no arguments are inputs after those of ``trace``.

    :raises Unsuitable: if an argument cannot be expressed as a view of the base.
    """
    layer = _Bases(trace, expand)
    for group in groups:
        layer.add(group)
    layer.editor.append(*trace.calls)
    return layer.editor.done(inputs=tuple(layer.inputs))


class _Bases:
    """Builder of a trace with bases: its inputs, and the views in its editor."""

    def __init__(self, trace: Trace, expand: RuleTable[Expand]) -> None:
        self.trace = trace
        self.expand = expand
        self.editor = TraceEditor(trace)
        self.inputs: list[Proxy] = list(trace.inputs)

    def add(self, group: Group) -> None:
        """Make the arguments of ``group`` views of its base."""
        base = self.base(group)
        if not is_dense(base):
            raise Unsuitable("arguments are views of a tensor with gaps in its memory")
        for place, offset in zip(group.places, group.offsets, strict=True):
            # The base itself may be an argument: the others are its views.
            if place != group.base:
                self.member(base, place, offset)

    def base(self, group: Group) -> TensorProxy:
        """Base of ``group``: an argument, or a new input."""
        tensors = [_tensor(self.trace.inputs[i]) for i in group.places]
        if len({(p.dtype, p.device, p.requires_grad, p.flags) for p in tensors}) > 1:
            raise Unsuitable("arguments that share memory have different data types")
        if group.base is not None:
            if group.offsets[group.places.index(group.base)]:
                raise Unsuitable("arguments are views of a tensor that does not begin its memory")
            return tensors[group.places.index(group.base)]
        extent = length(self.trace, group)
        shape, strides = group.geometry or ((extent,), (1,))
        if not group.geometry:
            if tensors[0].requires_grad:
                raise Unsuitable("autograd knows nothing of memory that arguments share")
            if extent > FAR * (extent - min(group.offsets)):
                raise Unsuitable("arguments share only a small part of their memory")
        tags = NO_TAGS if group.geometry else TagSet([MEMORY.name])
        name = self.editor.fresh("base")
        base = tensors[0].replace(name=name, shape=shape, strides=strides, tags=tags)
        self.inputs.append(base)
        return base

    def member(self, base: TensorProxy, place: int, offset: int) -> None:
        """Make the argument at ``place`` a view of ``base`` at ``offset``."""
        p = _tensor(self.trace.inputs[place])
        tags = p.tags.add(MEMBER.name, p.name)
        self.inputs[place] = p.replace(name=self.editor.fresh(p.name), tags=tags)
        context = self.trace.context
        if p.requires_grad:  # the argument requires grad even under no_grad
            context = context.with_("grad", True)
        args = (base, p.shape, p.strides, offset)
        bare = BoundSymbol(AS_STRIDED, args, context=context)
        try:
            made = bind_outputs(bare, self.expand.require(bare).value(bare), lambda _: p.name)
        except TjError as error:
            raise Unsuitable(str(error)) from error
        if not p.same_meta(made.flat_outs[0]):
            raise Unsuitable("an argument is no view of its base")
        self.editor.append(made.replace(outputs=p))


def _tensor(p: Proxy) -> TensorProxy:
    assert isinstance(p, TensorProxy)
    _numbers((*p.shape, *p.strides))
    return p


def _numbers(dims: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(n, int) for n in dims):
        raise Unsuitable("arguments that share memory have sizes that differ from call to call")
    return tuple(dims)


def length(trace: Trace, group: Group) -> int:
    """Number of elements from the start of a group's memory to the end of its last argument."""
    tensors = [_tensor(trace.inputs[i]) for i in group.places]
    spans = [span(_numbers(p.shape), _numbers(p.strides)) for p in tensors]
    return max((o + n for o, n in zip(group.offsets, spans, strict=True) if n), default=0)

"""Import a level of `torch.func` as the operators that it runs, found on fake tensors.

They can be fused, differentiated and moved as those of the rest of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core import tag
from tj_core.extend import (
    PLAIN_CONTEXT,
    BoundSymbol,
    CannotExpandError,
    Context,
    NumberProxy,
    Proxy,
    Symbol,
    TensorProxy,
    bind_outputs,
    formal_index,
    is_subclass,
    leaves,
    map_tree,
    requires_grad,
)

from tj_torch.capture import levels
from tj_torch.capture.inner_gradients import inputs_behind
from tj_torch.capture.sources import first_source
from tj_torch.ops.errors import ExpansionError
from tj_torch.ops.facts.autograd_marks import UNTRACKED
from tj_torch.ops.naming.resolve import resolve
from tj_torch.runtime.func_levels import transformed
from tj_torch.torch_private.ops import storage_id
from tj_torch.torch_private.runtime import HigherOrderOperator, pytree

if TYPE_CHECKING:
    from tj_core.extend import Source

    from tj_torch.capture.node_values import NodeValues

__all__ = ["import_operators"]


def import_operators(
    program: NodeValues, group: Sequence[torch.fx.Node], *, own_leaves: bool = False
) -> str | None:
    """Import ``group``, the nodes of a level in ``program``, as the operators that they run.

    Returns the reason, with nothing imported, if these are not known: a higher-order operation may
    have a gradient of its own, and what depends on data has no expansion. With ``own_leaves``,
    values may require a gradient because of a leaf that the group makes, and whose gradient nobody
    asks for.
    """
    if not all(map(_is_plain, group)):
        return "tags, or an operation with graphs of its own"
    taken = levels.outside(group)
    try:
        args = tuple(program.env[node] for node in taken)
        if own_leaves and any(map(is_subclass, leaves(args))):
            return "a tensor subclass"
        calls, outputs = _operators(program, group, args, own_leaves)
    except (CannotExpandError, ExpansionError, LookupError) as error:
        return str(error)
    program.calls += calls
    program.env.update(zip(levels.escaping(group), outputs, strict=True))
    return None


def _operators(
    program: NodeValues, group: Sequence[torch.fx.Node], args: tuple[Any, ...], own_leaves: bool
) -> tuple[list[BoundSymbol], list[Any]]:
    """The operators of ``group`` for ``args``, and the values of the nodes that are used after it.

    :raises CannotExpandError: with the reason, as the others, if they are not known.
    :raises ExpansionError: if PyTorch raises.
    """
    run, context = _function(program.graph, group), program.context.current
    found = program.dialects.expand_once(run, args, context)
    if found.body is None or found.made or found.captured:
        raise CannotExpandError("numbers that depend on data, or a tensor from outside")
    given = [p for p in leaves(args) if isinstance(p, Proxy)]
    tracked = own_leaves or any(map(requires_grad, given))
    if tracked and found.kind == "KERNEL":  # recorded below autograd, which its gradient is in
        raise CannotExpandError("an operator of an extension")
    # Writes come last; an argument with the same memory would have been read before.
    if found.effects.written and not (own_leaves and _are_apart(levels.outside(group))):
        raise CannotExpandError("writes to memory that may have two names")
    if tracked and program.dialects.writes_unseen(run, args, context):
        raise CannotExpandError(_UNSEEN)
    source = first_source(group)
    named = {p.name: given[formal_index(p.name)] for p in found.body.inputs}
    replay = _Replay(program, named, source)
    for call in found.body.calls:
        if own_leaves and _is_power_of_symbol(call):
            # Its gradient is by cases, whose gradients are NaN.
            raise CannotExpandError("a power whose exponent differs between calls")
        replay.add(call)
    for index, value in found.body.updates:
        marks = [(kind, count) for kind, i, count in found.effects.marks if i == index]
        replay.write(given[index], value, dict(marks))
    outputs = [map_tree(replay.real, out, Proxy) for out in found.body.outputs]
    escaping = zip(levels.escaping(group), found.outputs, outputs, strict=True)
    if not all(_fit(program, *each, own_leaves) for each in escaping):
        raise CannotExpandError("results that are others without autograd")
    return replay.calls, outputs


_UNSEEN = "a write that autograd does not see"


def _is_power_of_symbol(call: BoundSymbol) -> bool:
    power = call.symbol.path.partition(".")[0] == "pow"
    return power and any(isinstance(p, NumberProxy) for p in call.flat_args)


def _is_plain(node: torch.fx.Node) -> bool:
    """Test for a node that only runs operators: it has no tags, graphs or objects."""
    special = isinstance(node.target, HigherOrderOperator) or node.target is tag
    return not special and node.op != "get_attr"


def _are_apart(nodes: Sequence[torch.fx.Node]) -> bool:
    """Test that no two of ``nodes`` have the same memory."""
    made = (pytree.tree_leaves(node.meta.get("example_value")) for node in nodes)
    storages = [storage_id(v) for values in made for v in values if isinstance(v, torch.Tensor)]
    return len({*storages}) == len(storages)


def _fit(program: NodeValues, node: torch.fx.Node, wanted: Any, made: Any, own: bool) -> bool:
    """Test for the same metadata of the values of ``node`` by its expansion, and as ``made``.

    With ``own`` leaves, values that depend on no input may require no gradient as made.
    """
    fakes = [v for v in pytree.tree_leaves(program.example(node)) if isinstance(v, torch.Tensor)]
    pairs = [[p for p in leaves(tree) if isinstance(p, Proxy)] for tree in (wanted, made)]
    for i, (one, other) in enumerate(zip(*pairs, strict=True)):
        fewer = own and requires_grad(one) and not requires_grad(other)
        if fewer and i < len(fakes) and inputs_behind(program.graph.graph, fakes[i]):
            return False
        if not (_alike(one, other) if fewer else one.same_meta(other)):
            return False
    return True


def _function(graph: torch.fx.GraphModule, group: Sequence[torch.fx.Node]) -> Callable[..., Any]:
    """The nodes of ``group`` as a function of the values from outside of it."""
    part = torch.fx.Graph()
    copies = {node: part.placeholder(node.name) for node in levels.outside(group)}
    for node in group:
        copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in levels.escaping(group)))
    body = torch.fx.GraphModule(graph, part)
    return lambda *args: transformed(body, *args)


@dataclass
class _Replay:
    """The ``calls`` of a body, made again for ``values`` of ``program``, by formal name."""

    program: NodeValues
    values: dict[str, Any]
    source: Source | None
    calls: list[BoundSymbol] = field(default_factory=list)

    def real(self, formal: Proxy) -> Any:
        """The program's value for ``formal``."""
        return self.values[formal.name]

    def add(self, inner: BoundSymbol) -> None:
        """Add ``inner`` with the metadata and effects that it has for the program's values.

        :raises CannotExpandError: if its results differ from those of ``inner``.
        """
        inner = _with_numbers_made(inner)
        args = map_tree(self.real, inner.args, Proxy)
        if inner.symbol == _COPIED:
            bound = self.copied(args[0], args[1], inner.context)
        else:
            kwargs = map_tree(self.real, inner.kwargs, Proxy)
            bound = self.call(inner.symbol, args, kwargs, inner.context)
        pairs = [*zip(inner.flat_outs, bound.flat_outs, strict=False)]
        alike = len(inner.flat_outs) == len(bound.flat_outs) and all(_alike(*p) for p in pairs)
        unseen = not (bound.flat_args or bound.flat_outs)  # it changes what nobody knows
        if unseen or bound.effects.rebinds or not alike:
            raise CannotExpandError(f"{inner.symbol} is another call outside of its level")
        self.values |= {formal.name: p for formal, p in pairs}

    def call(
        self, symbol: Symbol, args: Any, kwargs: Any = (), context: Context = PLAIN_CONTEXT
    ) -> BoundSymbol:
        """Add a call of ``symbol`` with values of the program."""
        program = self.program
        context = context.over(program.context.current)
        call = BoundSymbol(symbol, args, kwargs, context=context, source=self.source)
        facts = program.dialects.expand(call, resolve(symbol), program.modes)
        path = symbol.path.partition(".")[0]
        bound = _without_itself(bind_outputs(call, facts, lambda _: program.namer(path)))
        self.calls.append(bound)
        return bound

    def copied(self, like: TensorProxy, value: TensorProxy, context: Context) -> BoundSymbol:
        """Add `aten.copy`, which has no gradient, as calls that have one.

        :raises CannotExpandError: if ``value`` is a constant.
        """
        if not isinstance(value, TensorProxy):
            raise CannotExpandError("a constant is copied inside of its level")
        if value.shape != like.shape:
            value = self.call(_EXPAND, (value, like), (), context).outputs
        if value.dtype != like.dtype:
            value = self.call(_CAST, (value, like), (), context).outputs
        if value.strides == like.strides or not like.shape:
            return self.call(_CLONE, (value,), (), context)
        return self.call(_SLICES, (like, value), (), context)  # all of it

    def write(self, tensor: Proxy, value: Proxy, marks: Mapping[str, int]) -> None:
        """Add the write of ``value``, a formal one, to ``tensor``; autograd sees it as ``marks``.

        :raises CannotExpandError: if autograd, with gradients on, does not see it.
        """
        if UNTRACKED in marks:
            raise CannotExpandError(_UNSEEN)
        bound = self.call(_WRITE, (tensor, self.real(value)))
        seen = tuple((kind, 0, count) for kind, count in marks.items())
        self.calls[-1] = bound.replace(effects=replace(bound.effects, marks=seen))


def _without_itself(call: BoundSymbol) -> BoundSymbol:
    """``call`` without a body that is only the operator itself, which says nothing."""
    inner = call.body.calls if call.body is not None else ()
    own = len(inner) == 1 and inner[0].symbol == call.symbol
    return call.replace(body=None) if own else call


def _with_numbers_made(call: BoundSymbol) -> BoundSymbol:
    """``call``, or what makes a tensor of its number: `vmap` copies a number as if it were one."""
    if call.symbol != _COPY or isinstance(call.args[0], Proxy):
        return call
    kwargs = tuple((name, value) for name, value in call.kwargs if name in ("dtype", "device"))
    if not any(name == "dtype" for name, _ in kwargs):
        raise CannotExpandError(f"{call.symbol} of a number")
    return call.replace(symbol=_MADE, kwargs=kwargs)


_COPY = Symbol("aten", "_to_copy.default")
_MADE = Symbol("aten", "scalar_tensor.default")
_COPIED = Symbol("aten", "copy.default")
_CAST = Symbol("aten", "type_as.default")
_CLONE = Symbol("aten", "clone.default")
_EXPAND = Symbol("aten", "expand_as.default")
_SLICES = Symbol("aten", "slice_scatter.default")
_WRITE = Symbol("aten", "copy_.default")


def _alike(one: Proxy, other: Proxy) -> bool:
    """Test for the same metadata, apart from whether a gradient is required."""
    if not (isinstance(one, TensorProxy) and isinstance(other, TensorProxy)):
        return type(one) is type(other)
    facts = ("shape", "strides", "dtype", "device")
    return all(getattr(one, name) == getattr(other, name) for name in facts)

"""Import a level of `torch.func` as the operators that it runs, found on fake tensors.

They can be fused, differentiated and moved as those of the rest of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Proxy,
    Symbol,
    TensorProxy,
    bind_outputs,
    formal_index,
    leaves,
    map_tree,
)

from tj_torch.capture import levels
from tj_torch.capture.sources import node_source
from tj_torch.ops.errors import ExpansionError
from tj_torch.ops.naming.resolve import resolve
from tj_torch.runtime.func_levels import transformed
from tj_torch.torch_private.runtime import HigherOrderOperator

if TYPE_CHECKING:
    from tj_core.extend import Body, Source

    from tj_torch.capture.node_values import NodeValues

__all__ = ["import_operators"]


def import_operators(program: NodeValues, group: Sequence[torch.fx.Node]) -> bool:
    """Import ``group``, the nodes of a level in ``program``, as the operators that they run.

    False, with nothing imported, if these are not known: a higher-order operation may have a
    gradient of its own, and what depends on data has no expansion.
    """
    if any(node.op == "get_attr" or isinstance(node.target, HigherOrderOperator) for node in group):
        return False
    args = tuple(program.env[node] for node in levels.outside(group))
    run = _function(program.graph, group)
    try:
        found = program.dialects.expand_once(run, args, program.context.current)
        if found.body is None or found.made or found.captured or found.effects.written:
            return False
        source = next((s for s in map(node_source, group) if s is not None), None)
        replay = _Replay(program, _given(found.body, args), source)
        for call in found.body.calls:
            replay.add(call)
    except (CannotExpandError, ExpansionError, LookupError):
        return False
    outputs = [map_tree(replay.real, out, Proxy) for out in found.body.outputs]
    wanted = (p for p in leaves(found.outputs) if isinstance(p, Proxy))
    made = (p for p in leaves(outputs) if isinstance(p, Proxy))
    if not all(w.same_meta(m) for w, m in zip(wanted, made, strict=True)):
        return False
    program.calls += replay.calls
    program.env.update(zip(levels.escaping(group), outputs, strict=True))
    return True


def _given(body: Body, args: Any) -> dict[str, Any]:
    """The arguments behind the inputs of ``body``, by formal name."""
    given = [p for p in leaves(args) if isinstance(p, Proxy)]
    return {p.name: given[formal_index(p.name)] for p in body.inputs}


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
        program = self.program
        inner = _with_numbers_made(inner)
        call = BoundSymbol(
            inner.symbol,
            map_tree(self.real, inner.args, Proxy),
            map_tree(self.real, inner.kwargs, Proxy),
            context=inner.context.over(program.context.current),
            source=self.source,
        )
        facts = program.dialects.expand(call, resolve(inner.symbol), program.modes)
        path = inner.symbol.path.partition(".")[0]
        bound = bind_outputs(call, facts, lambda _: program.namer(path))
        pairs = [*zip(inner.flat_outs, bound.flat_outs, strict=False)]
        alike = len(inner.flat_outs) == len(bound.flat_outs) and all(_alike(*p) for p in pairs)
        unseen = not (bound.flat_args or bound.flat_outs)  # it changes what nobody knows
        if unseen or bound.effects.rebinds or not alike:
            raise CannotExpandError(f"{inner.symbol} is another call outside of its level")
        self.values |= {formal.name: p for formal, p in pairs}
        self.calls.append(bound)


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


def _alike(one: Proxy, other: Proxy) -> bool:
    """Test for the same metadata, apart from whether a gradient is required."""
    if not (isinstance(one, TensorProxy) and isinstance(other, TensorProxy)):
        return type(one) is type(other)
    facts = ("shape", "strides", "dtype", "device")
    return all(getattr(one, name) == getattr(other, name) for name in facts)

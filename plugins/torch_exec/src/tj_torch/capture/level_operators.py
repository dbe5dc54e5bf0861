"""Import a level of `torch.func` as the operators that it runs, found on fake tensors.

They can be fused, differentiated and moved as those of the rest of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Proxy,
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

    from tj_torch.capture.acquire import Importer

__all__ = ["operators_of"]


def operators_of(
    importer: Importer, group: Sequence[torch.fx.Node]
) -> tuple[list[BoundSymbol], list[Any]] | None:
    """Calls of the operators of ``group``, a level's nodes, and the values that escape from it.

    None if they are not known: a higher-order operation may have a gradient of its own, and what
    depends on data or changes a state has no expansion.
    """
    if importer.opaque_state or any(map(_is_opaque, group)):
        return None
    args = tuple(importer.env[node] for node in levels.outside(group))
    given = [p for p in leaves(args) if isinstance(p, Proxy)]
    context = importer.context.current
    try:
        found = importer.dialects.expand_once(_function(importer, group), args, context)
        if found.body is None or found.made or found.captured or found.effects.written:
            return None
        source = next((s for s in map(node_source, group) if s is not None), None)
        replay = _Replay(importer, source, dict(_formals(found.body, given)))
        for call in found.body.calls:
            replay.add(call)
    except (CannotExpandError, ExpansionError, LookupError):
        return None
    outputs = [map_tree(replay.real, out, Proxy) for out in found.body.outputs]
    wanted = [p for p in leaves(found.outputs) if isinstance(p, Proxy)]
    made = [p for p in leaves(outputs) if isinstance(p, Proxy)]
    if not all(w.same_meta(m) for w, m in zip(wanted, made, strict=True)):
        return None
    return replay.calls, outputs


def _is_opaque(node: torch.fx.Node) -> bool:
    return node.op == "get_attr" or isinstance(node.target, HigherOrderOperator)


def _function(importer: Importer, group: Sequence[torch.fx.Node]) -> Callable[..., Any]:
    """The nodes of ``group`` as a function of the values from outside of it."""
    graph = torch.fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in levels.outside(group)}
    for node in group:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in levels.escaping(group)))
    body = torch.fx.GraphModule(importer.graph, graph)
    return lambda *args: transformed(body, *args)


def _formals(body: Body, given: Sequence[Proxy]) -> list[tuple[str, Proxy]]:
    return [(p.name, given[formal_index(p.name)]) for p in body.inputs]


class _Replay:
    """The calls of a body, made again for a program's values ``real``, by formal name."""

    def __init__(self, importer: Importer, source: Source | None, values: dict[str, Any]) -> None:
        self.importer, self.source, self.values = importer, source, values
        self.calls: list[BoundSymbol] = []

    def real(self, formal: Proxy) -> Any:
        """The program's value for ``formal``."""
        return self.values[formal.name]

    def add(self, inner: BoundSymbol) -> None:
        """Add ``inner`` with the metadata and effects that it has for the program's values.

        :raises CannotExpandError: if they are others than those of ``inner``.
        """
        importer = self.importer
        call = BoundSymbol(
            inner.symbol,
            map_tree(self.real, inner.args, Proxy),
            map_tree(self.real, inner.kwargs, Proxy),
            context=inner.context.over(importer.context.current),
            source=self.source,
        )
        facts = importer.dialects.expand(call, resolve(inner.symbol), importer.modes)
        path = inner.symbol.path.partition(".")[0]
        bound = bind_outputs(call, facts, lambda _: importer.namer(path))
        if bound.effects.rebinds or len(bound.flat_outs) != len(inner.flat_outs):
            raise CannotExpandError(f"{inner.symbol} is another call outside of its level")
        for formal, p in zip(inner.flat_outs, bound.flat_outs, strict=True):
            if isinstance(formal, TensorProxy) and not _is_like(formal, p):
                raise CannotExpandError(f"{inner.symbol} is another call outside of its level")
            self.values[formal.name] = p
        self.calls.append(bound)


def _is_like(formal: TensorProxy, p: Proxy) -> bool:
    return isinstance(p, TensorProxy) and (formal.shape, formal.strides, formal.dtype) == (
        p.shape,
        p.strides,
        p.dtype,
    )

"""Import groups of nodes: one node, a level of `torch.func`, or what a program differentiates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tj_core.extend import BoundSymbol, Effects, Proxy, Subprogram, Symbol, leaves, map_tree

from tj_torch.capture import inner_gradients, levels
from tj_torch.capture.higher_order.subprograms import differentiable
from tj_torch.capture.level_operators import import_operators
from tj_torch.capture.sources import first_source, node_source
from tj_torch.torch_private.runtime import set_gradients

if TYPE_CHECKING:
    import torch

    from tj_torch.capture.node_values import NodeValues

__all__ = ["import_group"]


def import_group(importer: NodeValues, group: Sequence[torch.fx.Node]) -> None:
    """Import the nodes of ``group``; those of a level become its operators, or one call.

    :raises InnerGradientsError: if a gradient that the program asks for is not captured.
    """
    if any(map(inner_gradients.asks, group)):
        _differentiated(importer, group)
    elif len(group) == 1:
        importer.node(group[0])
        return
    # In a checkpoint PyTorch refuses levels, and runs other operations' functions itself. In
    # inference mode the results of gradients are of that mode only without their level.
    elif (
        importer.inside
        or importer.opaque_state
        or (importer.context.current.get("inference") and levels.take_gradients(group))
        or import_operators(importer, group) is not None
    ):
        _transformed(importer, group)
    for node in group:
        if node.target is set_gradients:
            importer.context.handles(node)


def _differentiated(importer: NodeValues, group: Sequence[torch.fx.Node]) -> None:
    """Import nodes that are differentiated inside of the program, as their operators."""
    reason: str | None = "inside of another operation, or after one with unknown effects"
    if not (importer.inside or importer.opaque_state):
        reason = import_operators(importer, group, own_leaves=True)
    if reason is not None:
        message = f"torch.autograd.grad: {reason}"
        raise inner_gradients.InnerGradientsError(message, source=node_source(group[-1]))


def _transformed(importer: NodeValues, group: Sequence[torch.fx.Node]) -> None:
    """Import the nodes of a level of `torch.func` as one call without expansion."""
    inner = importer.inner(importer.graph, importer.context.current)
    inner.opaque_state = True
    inner.env |= {n: importer.env[n] for n in levels.outside(group)}
    inputs = [p for p in leaves([*inner.env.values()]) if isinstance(p, Proxy)]
    inner.proxies += {p.name: p for p in inputs}.values()
    for node in group:
        inner.node(node)
    escaping = levels.escaping(group)
    inner.result = tuple(inner.env[n] for n in escaping)
    body = inner.traced(importer.namer("body"))
    call = BoundSymbol(
        Symbol("tj", "transformed"),
        (Subprogram(body, tuple(range(len(inner.proxies)))), *inner.proxies),
        context=importer.context.current,
        source=first_source(group),
        effects=Effects(ordered=("side_effect",)),
    )

    def unwrapped(p: Proxy) -> Proxy:
        """Output of the call, marked as requiring grad if outer autograd may see it."""
        taken = any(p.name == arg.name for arg in call.flat_args)
        return differentiable(p.replace(name=importer.namer(p.name)) if taken else p, call)

    outputs = map_tree(unwrapped, inner.result, Proxy)
    importer.calls.append(call.replace(outputs=outputs))
    importer.env.update(zip(escaping, outputs, strict=True))
    table = importer.dialects.tables[levels.LEVELS]
    importer.opaque_state |= any(levels.changes_state(call, table) for call in inner.calls)

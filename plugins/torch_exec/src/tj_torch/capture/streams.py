"""Refuse programs that choose or synchronize streams, and leave them to eager.

A stream orders kernels, and owns the memory that they may reuse. A trace runs on one stream, the
caller's: Dynamo keeps the stream of a ``with`` block in metadata of nodes, which no transform and
no executor reads.
"""

from __future__ import annotations

import torch
from tj_core.extend import CaptureError

from tj_torch.capture.sources import node_source
from tj_torch.torch_private.runtime import OpOverload, OpOverloadPacket

__all__ = ["refuse_streams"]


def refuse_streams(node: torch.fx.Node) -> None:
    """Refuse ``node`` if it runs on another stream, or synchronizes streams.

    :raises CaptureError: if it does.
    """
    if "stream" in (node.meta.get("custom") or {}):
        raise CaptureError(
            "a call on another stream: a trace runs on the caller's. "
            "A function that is jitted by itself can be called there",
            source=node_source(node),
        )
    if _orders_streams(node):
        raise CaptureError(
            f"`{node.target}` synchronizes streams: a trace has one, the caller's",
            source=node_source(node),
        )


def _orders_streams(node: torch.fx.Node) -> bool:
    if isinstance(node.target, OpOverload | OpOverloadPacket):
        return str(node.target).startswith("streams.")
    # It tells the allocator which stream uses the memory, and takes effect on no value.
    if node.op == "call_method" and node.target == "record_stream":
        return True
    objects = (n.meta.get("example_value") for n in node.all_input_nodes)
    return any(isinstance(value, torch.Stream | torch.Event) for value in objects)

"""Programs that choose streams, or order what streams do, are left to eager.

A stream says when kernels run, and whose memory they may take. A trace has one, the caller's: the
stream of a ``with`` block stands on Dynamo's nodes, where no transform and no executor sees it.
"""

from __future__ import annotations

import torch
from tj_core.extend import CaptureError

from tj_torch.capture.sources import node_source
from tj_torch.torch_private.runtime import OpOverload, OpOverloadPacket

__all__ = ["refuse_streams"]


def refuse_streams(node: torch.fx.Node) -> None:
    """Refuse ``node`` if it runs on a stream of its own, or if it makes a stream wait.

    :raises CaptureError: then.
    """
    if "stream" in (node.meta.get("custom") or {}):
        raise CaptureError(
            "a call on another stream: a trace runs on the caller's. "
            "A function that is jitted by itself can be called there",
            source=node_source(node),
        )
    if _orders_streams(node):
        raise CaptureError(
            f"`{node.target}` orders what streams do: a trace has one, the caller's",
            source=node_source(node),
        )


def _orders_streams(node: torch.fx.Node) -> bool:
    if isinstance(node.target, OpOverload | OpOverloadPacket):
        return str(node.target).startswith("streams.")
    if node.op == "call_method" and node.target == "record_stream":
        return True
    objects = (n.meta.get("example_value") for n in node.all_input_nodes)
    return any(isinstance(value, torch.Stream | torch.Event) for value in objects)

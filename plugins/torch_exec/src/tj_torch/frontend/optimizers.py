"""Steps of PyTorch's optimizers in captured programs: left to eager.

An optimizer that finds itself compiled computes its bias corrections on tensors, in float32, and in
eager in Python, in double precision.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from tj_core.errors import CaptureError

from tj_torch.frontend.sources import node_source

__all__ = ["check_optimizers"]

_FOLDER = str(Path(torch.optim.__file__).parent)
_FILE = re.compile(re.escape(_FOLDER) + r"[/\\](\w+)\.py")
_SAME = frozenset({"optimizer", "sgd", "lr_scheduler", "swa_utils"})
"""Files whose programs compute the same, compiled or not."""


def check_optimizers(graph: torch.fx.GraphModule) -> None:
    """See that no step of an optimizer is in ``graph`` that computes otherwise when compiled.

    :raises CaptureError: naming the optimizer.
    """
    for node in graph.graph.nodes:
        trace = node.meta.get("stack_trace") or ""
        if _FOLDER in trace:
            for name in sorted({*_FILE.findall(trace)} - _SAME):
                reason = f"the optimizer {name} computes otherwise where it is compiled"
                raise CaptureError(reason, source=node_source(node))

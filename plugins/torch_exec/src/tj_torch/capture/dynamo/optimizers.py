"""Steps of PyTorch's optimizers in captured programs: left to eager.

An optimizer that finds itself compiled computes its bias corrections on tensors, in float32, and in
eager in Python, in double precision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType

import torch
from tj_core.extend import CaptureError

from tj_torch.capture.sources import node_source

__all__ = ["OptimizerError", "check_optimizers", "is_shared", "kept_eager", "shared_codes"]

_FOLDER = str(Path(torch.optim.__file__).parent)
_FILE = re.compile(re.escape(_FOLDER) + r"[/\\](\w+)\.py")
_SAME = frozenset({"optimizer", "sgd", "lr_scheduler", "swa_utils"})
"""Files whose programs compute the same, compiled or not."""


def kept_eager(where: str) -> str | None:
    """Why code must not be compiled, if the files that ``where`` names say so."""
    names = {*_FILE.findall(where)} - _SAME if _FOLDER in where else ()
    return f"the optimizer {min(names)} computes otherwise where it is compiled" if names else None


def is_shared(file: str) -> bool:
    """Whether ``file`` is that of what optimizers share, which asks whether it is compiled."""
    return file == str(Path(_FOLDER) / "optimizer.py")


class OptimizerError(CaptureError):
    """A step of an optimizer must not be compiled, nor any part of it."""


def shared_codes() -> Iterator[CodeType]:
    """The code of what optimizers share: compiled by itself it would believe that all is."""
    for value in vars(import_module("torch.optim.optimizer")).values():
        if isinstance(value, FunctionType) and is_shared(value.__code__.co_filename):
            yield value.__code__


def check_optimizers(graph: torch.fx.GraphModule) -> None:
    """See that no step of an optimizer is in ``graph`` that computes otherwise when compiled.

    :raises OptimizerError: naming the optimizer.
    """
    for node in graph.graph.nodes:
        reason = kept_eager(node.meta.get("stack_trace") or "")
        if reason is not None:
            raise OptimizerError(reason, source=node_source(node))

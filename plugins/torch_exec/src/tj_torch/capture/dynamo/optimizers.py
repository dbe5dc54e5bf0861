"""Steps of PyTorch's optimizers in captured programs: left to eager.

An optimizer that finds itself compiled computes its bias corrections on tensors, in float32, and in
eager in Python, in double precision.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from tj_core.extend import CaptureError

from tj_torch.capture.sources import node_source

__all__ = ["OptimizerError", "check_optimizers", "is_shared", "kept_eager", "left_codes"]

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


def left_codes() -> Iterator[CodeType]:
    """The code that no part of a step may be compiled of, once its optimizer is left to eager.

    What optimizers share would believe that all is compiled.
    """
    prefix = f"{torch.optim.__name__}."
    names = [n.removeprefix(prefix) for n in sys.modules if n.startswith(prefix)]
    for name in names:
        if name == "optimizer" or (name not in _SAME and name.isidentifier()):
            yield from _codes(vars(sys.modules[prefix + name]).values(), prefix + name)


def _codes(values: Iterable[Any], module: str) -> Iterator[CodeType]:
    """The code of functions and methods of ``module``, with that of functions inside of them."""
    for value in values:
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            yield from _codes(vars(value).values(), module)
            continue
        found = getattr(value, "__wrapped__", value)
        if isinstance(found, FunctionType):
            yield from _nested(found.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def check_optimizers(graph: torch.fx.GraphModule) -> None:
    """See that no step of an optimizer is in ``graph`` that computes otherwise when compiled.

    :raises OptimizerError: naming the optimizer.
    """
    for node in graph.graph.nodes:
        reason = kept_eager(node.meta.get("stack_trace") or "")
        if reason is not None:
            raise OptimizerError(reason, source=node_source(node))

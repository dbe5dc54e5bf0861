"""Steps of PyTorch's optimizers that run in eager: in part, or where torch.compile captures them.

There an optimizer computes its bias corrections on tensors in float32; in eager, in Python in
double precision. Other captures are corrected (`optimizer_steps`).
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

from tj_torch.capture.dynamo.optimizer_steps import as_in_eager
from tj_torch.capture.sources import node_source

__all__ = ["OptimizerError", "check_optimizers", "is_part_of_step", "left_codes"]

_FOLDER = str(Path(torch.optim.__file__).parent)
_FILE = re.compile(re.escape(_FOLDER) + r"[/\\](\w+)\.py")
_SAME = frozenset({"optimizer", "sgd", "lr_scheduler", "swa_utils"})
"""Files of optimizers and helpers that compute the same, compiled or not."""
_OTHERS = frozenset({"lr_scheduler", "swa_utils"})
_STEP = re.compile(r"^(torch_dynamo_resume_in_)?step(_at_\d+)?$")
"""The name of a step, and of what follows a graph break in one, as the closure's backward."""


def is_part_of_step(code: CodeType) -> bool:
    """Test for code that a step calls, or calls the step with, and that PyTorch's hook comes to.

    It does where the step as a whole is not captured: compiled, its parts would be many programs.
    """
    found = _FILE.match(code.co_filename)
    return found is not None and found[1] not in _OTHERS and not _STEP.search(code.co_name)


def _kept_eager(where: str) -> str | None:
    """Reason not to compile code from the files named in ``where``, None if there is none."""
    names = {*_FILE.findall(where)} - _SAME if _FOLDER in where else ()
    return f"the optimizer {min(names)} computes otherwise where it is compiled" if names else None


class OptimizerError(CaptureError):
    """An optimizer's step must not be compiled, nor any part of it."""


def left_codes() -> Iterator[CodeType]:
    """Code objects not to compile once an optimizer's step is left to eager.

    Their shared code, if compiled, would assume that the whole step is.
    """
    prefix = f"{torch.optim.__name__}."
    names = [n.removeprefix(prefix) for n in sys.modules if n.startswith(prefix)]
    for name in names:
        if name == "optimizer" or (name not in _SAME and name.isidentifier()):
            yield from _codes(vars(sys.modules[prefix + name]).values(), prefix + name)


def _codes(values: Iterable[Any], module: str) -> Iterator[CodeType]:
    """Code of functions and methods of ``module``, and of functions inside of these."""
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
    """Check that ``graph`` has no step of an optimizer that computes otherwise when compiled.

    :raises OptimizerError: naming the optimizer.
    """
    for node in () if as_in_eager() else graph.graph.nodes:
        reason = _kept_eager(node.meta.get("stack_trace") or "")
        if reason is not None:
            raise OptimizerError(reason, source=node_source(node))

"""Steps of PyTorch's optimizers, captured as they run in eager.

Code of `torch.optim` asks if it is compiled. If so, it keeps numbers of the host on tensors
(``beta ** step``, in float32, where eager computes in double precision), takes the path for CUDA
graphs (``capturable``), and breaks the graph around the step. Here it is told that it is not
compiled: numbers are read from tensors by ``item``, and computed in Python in each call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.patches import replace

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import CodeType

__all__ = ["as_in_eager", "correct"]

_FOLDER = str(Path(torch.optim.__file__).parent)

_STAY = frozenset(
    {
        # It asks which stream is captured, as a warning for users who do so themselves.
        "_accelerator_graph_capture_health_check",
        "_cuda_graph_capture_health_check",
        # The groups are made by a function in C++, so that kernels for lists get lists of one type.
        "_group_tensors_by_device_and_dtype",
    }
)
"""Functions that compute the same, compiled or not."""


def correct(stack: ExitStack) -> None:
    """Let optimizers compute as in eager, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import (
        OptimizerVariable,
        SkipFunctionVariable,
        TensorVariable,
        TorchInGraphFunctionVariable,
    )

    handlers = TorchInGraphFunctionVariable._get_handlers()
    asked = torch.compiler.is_compiling
    answer = handlers[asked]
    stack.callback(handlers.__setitem__, asked, answer)
    handlers[asked] = _answering(answer)
    # Dynamo takes the path for CUDA graphs, and moves counts of steps to the parameters' device.
    replace(stack, OptimizerVariable, "_set_capturable", lambda _: _do_nothing)
    replace(stack, OptimizerVariable, "move_step_if_cpu", lambda _: _do_nothing)
    replace(stack, SkipFunctionVariable, "call_function", _passing_over)
    replace(stack, TensorVariable, "method_item", _reading)


def as_in_eager() -> bool:
    """Test if steps that are captured now are corrected; not so under torch.compile."""
    from tj_torch.torch_private.dynamo import OptimizerVariable

    return OptimizerVariable._set_capturable is _do_nothing


def _do_nothing(self: Any, *args: Any) -> None: ...


def _is_step(code: CodeType) -> bool:
    """Test for code of an optimizer."""
    return code.co_filename.startswith(_FOLDER) and code.co_name not in _STAY


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import ConstantVariable

    def handle(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_step(tx.f_code):
            return ConstantVariable.create(False)
        return original(self, tx, *args, **kwargs)

    return handle


def _passing_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pass over the graph breaks of `_use_grad_for_differentiable`."""
    from tj_torch.torch_private.dynamo import ConstantVariable, dynamo

    def call_function(self: Any, tx: Any, *args: Any) -> Any:
        if self.value is dynamo.graph_break and _is_step(tx.f_code):
            return ConstantVariable.create(None)
        return original(self, tx, *args)

    return call_function


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Capture ``item`` in a step where the program around it has graph breaks, too."""

    def method_item(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_step(tx.f_code):
            return original(self, tx, *args, **kwargs)
        # Frozen, and made for each graph: other reads in this graph are breaks all the same.
        object.__setattr__(tx.output.shape_env.settings, "allow_scalar_outputs", True)
        return None

    return method_item

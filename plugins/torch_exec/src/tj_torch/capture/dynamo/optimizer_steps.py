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

from tj_torch.capture.dynamo.patches import put_item, replace_handler
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import CodeType

__all__ = ["as_in_eager", "correct"]

_FOLDER = str(Path(torch.optim.__file__).parent)

_SCHEDULERS = (Path(_FOLDER) / "lr_scheduler.py").as_posix()

_STAY = frozenset(
    {
        # It asks which stream is captured, as a warning for users who do so themselves.
        "_accelerator_graph_capture_health_check",
        "_cuda_graph_capture_health_check",
    }
)
"""Functions that compute the same, compiled or not."""


def correct(stack: ExitStack) -> None:
    """Let optimizers compute as in eager, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import (
        FORCE_SKIP_FILES,
        OptimizerVariable,
        SkipFunctionVariable,
        SymNodeVariable,
        TensorVariable,
        TorchInGraphFunctionVariable,
        VariableBuilder,
        _group_tensors_by_device_and_dtype,
    )

    replace_handler(stack, torch.compiler.is_compiling, _answering)
    handlers = TorchInGraphFunctionVariable._get_handlers()
    put_item(stack, handlers, _group_tensors_by_device_and_dtype, _grouped)
    # Dynamo takes the path for CUDA graphs, and moves counts of steps to the parameters' device.
    replace(stack, OptimizerVariable, "_set_capturable", lambda _: _do_nothing)
    replace(stack, OptimizerVariable, "move_step_if_cpu", lambda _: _do_nothing)
    replace(stack, SkipFunctionVariable, "call_function", _passing_over)
    replace(stack, TensorVariable, "method_item", _reading)
    replace(stack, VariableBuilder, "_wrap", _tracking)
    # A scheduler of learning rates wraps the step in a function in its own file.
    if _SCHEDULERS in FORCE_SKIP_FILES:
        FORCE_SKIP_FILES.remove(_SCHEDULERS)
        stack.callback(FORCE_SKIP_FILES.add, _SCHEDULERS)
    if has(SymNodeVariable, "nb_multiply_impl"):  # from 2.13 on; before, the graph breaks
        replace(stack, SymNodeVariable, "nb_multiply_impl", _multiplying)


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


def _grouped(self: Any, tx: Any, lists: Any, with_indices: Any = None) -> Any:
    """Group ``lists`` by device and type of the first one's tensors, as a function in C++ does.

    Kernels for lists take those of one device and type. Dynamo's own function, where it has one,
    fills empty lists with None.
    """
    from tj_torch.torch_private.dynamo import (
        ConstDictVariable,
        ListVariable,
        TupleVariable,
        ValueMutationNew,
        VariableTracker,
    )

    def made(items: list[Any]) -> Any:  # complex parameters are replaced by views in it
        return ListVariable(items, mutation_type=ValueMutationNew())

    columns = [each.realize().items for each in lists.realize().items]
    places: dict[tuple[Any, Any], list[int]] = {}
    for i, variable in enumerate(columns[0]):
        tensor = variable.realize()
        places.setdefault((tensor.device, tensor.dtype), []).append(i)
    numbered = with_indices is not None and with_indices.as_python_constant()
    found = {}
    for key, group in places.items():
        parts = [made([column[i] for i in group] if column else []) for column in columns]
        indices = VariableTracker.build(tx, group if numbered else [])
        found[VariableTracker.build(tx, key)] = TupleVariable([made(parts), indices])
    return ConstDictVariable(found)


def _passing_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pass over the graph breaks of `_use_grad_for_differentiable`; capture fused kernels."""
    from tj_torch.torch_private.dynamo import ConstantVariable, UserFunctionVariable, dynamo

    def call_function(self: Any, tx: Any, *args: Any) -> Any:
        if self.value is dynamo.graph_break and _is_step(tx.f_code):
            return ConstantVariable.create(None)
        fused = _fused(self.value)
        if fused is not None:  # guarded already, as what must not be compiled
            return UserFunctionVariable(fused).call_function(tx, *args)
        return original(self, tx, *args)

    return call_function


def _fused(function: Any) -> Any:
    """The function with a step's fused kernel that Dynamo has replaced by ``function``, or None."""
    found = getattr(function, "_torchdynamo_orig_callable", None)
    code = getattr(found, "__code__", None)
    is_one = code is not None and _is_step(code) and code.co_name.startswith("_fused_")
    return found if is_one else None


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Capture ``item`` in a step where the program around it has graph breaks, too."""

    def method_item(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_step(tx.f_code):
            return original(self, tx, *args, **kwargs)
        # Frozen, and made for each graph: other reads in this graph are breaks all the same.
        object.__setattr__(tx.output.shape_env.settings, "allow_scalar_outputs", True)
        return None

    return method_item


def _tracking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what programs set on optimizers, as the wrapper of a scheduler does; Dynamo drops it."""
    from tj_torch.torch_private.dynamo import OptimizerVariable

    def _wrap(self: Any, value: Any) -> Any:
        made = original(self, value)
        effects = self.tx.output.side_effects
        if isinstance(made, OptimizerVariable) and value not in effects:
            effects.track_object_existing(value, made)
        return made

    return _wrap


def _multiplying(original: Callable[..., Any]) -> Callable[..., Any]:
    """Multiply a number by zero, as Adagrad does with its count of steps, on a tensor.

    A product of symbols would be zero for infinity, too.
    """
    from tj_torch.torch_private.dynamo import (
        ConstantVariable,
        TorchInGraphFunctionVariable,
    )

    def nb_multiply_impl(self: Any, tx: Any, other: Any, *rest: Any, **kwargs: Any) -> Any:
        is_zero = other.is_python_constant() and other.as_python_constant() == 0
        if not (is_zero and self.python_type() is float and _is_step(tx.f_code)):
            return original(self, tx, other, *rest, **kwargs)
        made = TorchInGraphFunctionVariable(torch.scalar_tensor).call_function(
            tx, [self], {"dtype": ConstantVariable.create(torch.float64)}
        )
        return made.call_method(tx, "mul", [other], {}).call_method(tx, "item", [], {})

    return nb_multiply_impl

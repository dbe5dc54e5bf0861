"""Names of TorchDynamo, found where this PyTorch has them when they are first imported from here.

``from tj_torch.torch_private.dynamo import TensorVariable`` inside a function imports Dynamo, which
takes a second; a name that this PyTorch lacks raises `MissingNameError`.
"""

from __future__ import annotations

from tj_torch.torch_private.lookup import finder, paths_of

__all__ = ["MOVED", "PATHS", "forget"]

_NAMES = {
    "torch._C._dynamo.eval_frame": "set_code_exec_strategy set_eval_frame",
    "torch._C._dynamo.guards": "GlobalStateGuard TensorGuards",
    "torch._decomp": "decompositions",
    "torch._C._functorch": "peek_interpreter_stack",
    "torch._guards": "TracingContext",
    "torch.nn.modules.activation": "_is_make_fx_tracing",
    "torch._dynamo": "convert_frame exc guards symbolic_convert trace_rules types utils",
    "torch._dynamo.eval_frame": "skip_code",
    "torch._dynamo.guards": (
        "CheckFunctionManager GuardBuilder get_verbose_code_parts install_guard"
    ),
    "torch._dynamo.output_graph": "OutputGraph",
    "torch._dynamo.side_effects": "SideEffects",
    "torch._dynamo.source": (
        "DictGetItemSource GlobalSource GlobalStateSource is_from_skip_guard_source"
    ),
    "torch._dynamo.symbolic_convert": "InstructionTranslator InstructionTranslatorBase",
    "torch._dynamo.types": "FrameAction FrameExecStrategy",
    "torch._dynamo.utils": "dynamo_timed get_metrics_context",
    "torch._dynamo.variables": (
        "builder builtin ctx_manager dicts functions misc nn_module object_protocol user_defined"
    ),
    "torch._dynamo.variables.base": "AttributeMutationNew ValueMutationNew VariableTracker",
    "torch._dynamo.variables.builder": "VariableBuilder",
    "torch._dynamo.variables.builtin": "BuiltinVariable",
    "torch._dynamo.variables.constant": "ConstantVariable",
    "torch._dynamo.variables.ctx_manager": "ContextWrappingVariable GradModeVariable",
    "torch._dynamo.variables.dicts": "ConstDictVariable",
    "torch._dynamo.variables.functions": (
        "LocalGeneratorObjectVariable WrapperUserFunctionVariable"
    ),
    "torch._dynamo.variables.higher_order_ops": "AutogradFunctionApplyVariable",
    "torch._dynamo.variables.lists": (
        "BaseListVariable DequeVariable ListIteratorVariable SizeVariable TupleIteratorVariable "
        "TupleVariable"
    ),
    "torch._dynamo.variables.misc": (
        "AutogradFunctionContextVariable AutogradFunctionVariable CellVariable "
        "ExceptionVariable GetAttrVariable RandomVariable SuperVariable"
    ),
    "torch._dynamo.variables.tensor": "SymNodeVariable TensorVariable",
    "torch._dynamo.variables.torch": "TorchInGraphFunctionVariable tracing_state_functions",
    "torch._dynamo.variables.torch_function": "TensorWithTFOverrideVariable",
    "torch._dynamo.variables.user_defined": "UserDefinedObjectVariable UserDefinedSetVariable",
    "torch._functorch.autograd_function": "autograd_function_apply",
}
"""The names in each module, as PyTorch 2.10 has them; some are modules themselves."""

PATHS: dict[str, str] = {
    "dynamo": "torch._dynamo",
    **paths_of(_NAMES),
}
"""The paths of the names."""


MOVED = {
    "ExceptionVariable": "torch._dynamo.variables.exception.ExceptionVariable",  # 2.15
}
"""The paths of names that have moved, with the version that moved them."""

__getattr__ = finder(globals(), PATHS, MOVED)


def forget() -> None:
    """Look for all names again when they are next imported."""
    for name in PATHS:
        globals().pop(name, None)

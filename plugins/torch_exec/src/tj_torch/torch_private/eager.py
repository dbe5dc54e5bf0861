"""Names of PyTorch outside of Dynamo: modes, threads, operators, memory, autograd.

Found once, when first imported from here, which is as tj-torch is loaded. Where this PyTorch lacks
one, what is imported is a stand-in: one of `STAND_INS` if something else serves, or a class that
raises `MissingNameError` where it is used. Programs run in eager without the essential names.
"""

from __future__ import annotations

from typing import Any

from tj_torch.torch_private import lookup
from tj_torch.torch_private.lookup import finder, names_in

__all__ = [
    "ATTENTION",
    "AUTOCAST",
    "CONVOLUTIONS",
    "DEVICES",
    "EARLY",
    "FLAGS",
    "FORMS",
    "GRADIENTS",
    "GRAPHS",
    "INFERENCE",
    "MODES",
    "NAMES",
    "OPERATORS",
    "RUNS",
    "STAND_INS",
    "THREADS",
    "VIEWS",
    "forget",
]

MODES = "modes"
THREADS = "states of threads"
OPERATORS = "operators"
RUNS = "runs without data"
FORMS = "forms of tensors"
VIEWS = "views and versions"
GRADIENTS = "traced gradients"
DEVICES = "default devices"
EARLY = "checkpoints that stop early"
GRAPHS = "FX graphs"
FLAGS = "flags of kernels"
AUTOCAST = "autocast in programs"
INFERENCE = "inference mode in programs"
ATTENTION = "kernels of attention"
CONVOLUTIONS = "gradients of convolutions"

_STRIDES = ("know the strides of its results", OPERATORS)
_SHAPES = ("know the shapes of its results", OPERATORS)
_TYPES = ("know the data types of its results", OPERATORS)
_HOST = "know that random state is on the CPU", RUNS

_USES: dict[str, dict[str, tuple[str, ...]]] = {
    "torch": {
        "Tensor._base": ("know what a view is of", VIEWS),
        "Tensor._backward_hooks": ("know that a view has hooks", VIEWS),
        "Tensor._is_view": ("tell views", VIEWS),
        "Tensor._version": ("see writes", VIEWS),
        "UntypedStorage._cdata": ("tell which tensors share memory", VIEWS),
        "Generator._cdata": ("tell generators apart", RUNS),
        "_disable_functionalization": ("run operators as they are again", RUNS),
        "_enable_functionalization": ("run operators as functional ones", RUNS),
        "_from_functional_tensor": ("have the value of a tensor that was written", RUNS),
        "_functionalize_has_data_mutation": ("see which tensors were written", RUNS),
        "_functionalize_has_metadata_mutation": ("see which shapes were written", RUNS),
        "_functionalize_sync": ("have the value of a tensor that was written", RUNS),
        "_is_functional_tensor": ("know a tensor that stands for its values", RUNS),
        "_to_functional_tensor": ("make a tensor that stands for its values", RUNS),
    },
    "torch._C": {
        "DispatchKey": ("name the keys by which operators choose kernels", RUNS, MODES),
        "DispatchKey.Functionalize": ("know functional operators", RUNS, MODES),
        "DispatchKeySet": ("have a set of such keys", RUNS),
        "TensorBase": ("know methods that PyTorch generates", OPERATORS),
        "_DisableAutocast": ("run operators without autocast", RUNS),
        "_ExcludeDispatchKeyGuard": ("run subclasses before functional operators", RUNS),
        "_IncludeDispatchKeyGuard": ("run functional operators below subclasses", RUNS),
        "_PreserveDispatchKeyGuard": ("leave the dispatcher as it was found", THREADS),
        "_SetExcludeDispatchKeyGuard": ("run functional operators below subclasses", RUNS),
        "_FunctionBase._raw_saved_tensors": ("know what a Function saves", OPERATORS),
        "_VariableFunctions": ("know functions that PyTorch generates", OPERATORS),
        "_disabled_torch_function_impl": ("know subclasses without functions", OPERATORS),
        "_dispatch_dump": ("know where the kernels of operators are", OPERATORS),
        "_dispatch_get_all_op_names": ("list operators", OPERATORS),
        "_dispatch_has_kernel_for_dispatch_key": ("know kernels of autocast", OPERATORS),
        "_dispatch_key_parse": ("know a dispatch key by its name", FORMS),
        "_dispatch_keys": ("tell plain tensors from others", FORMS),
        "_dispatch_tls_is_dispatch_key_excluded": ("see that a tensor's dispatch runs", MODES),
        "_dispatch_tls_local_exclude_set": ("read the state of the dispatcher", THREADS),
        "_dispatch_tls_local_include_set": ("read the state of the dispatcher", THREADS),
        "_get_cudnn_deterministic": ("guard which kernels run", FLAGS),
        "_get_cudnn_enabled": ("guard which kernels run", FLAGS),
        "_enter_dual_level": ("read the level of forward-mode AD", THREADS),
        "_exit_dual_level": ("leave levels of forward-mode AD", THREADS),
        "_get_float32_matmul_precision": ("guard which kernels run", FLAGS),
        "_get_mkldnn_enabled": ("guard which kernels run", FLAGS),
        "_get_tracing_state": ("see that torch.jit traces", MODES),
        "_is_fwd_grad_enabled": ("read the state of forward-mode gradients", THREADS),
        "_jit_get_schemas_for_operator": ("know what operators write", OPERATORS),
        "_len_torch_dispatch_stack": ("see that a dispatch mode is on", MODES),
        "_len_torch_function_stack": ("see that a function mode is on", MODES),
        "_nn": ("know functions that PyTorch generates", OPERATORS),
        "_pop_torch_function_stack": ("leave function modes", MODES),
        "_push_on_torch_function_stack": ("enter function modes again", MODES),
        "_select_conv_backend": ("know which kernel a convolution runs", CONVOLUTIONS),
        "_set_conj": ("have a conjugate view without data", RUNS),
        "_set_fwd_grad_enabled": ("restore forward-mode gradients", THREADS),
        "_set_grad_enabled": ("restore and know gradients that are switched", THREADS),
        "_set_neg": ("have a negative view without data", RUNS),
        "_set_throw_on_mutable_data_ptr": ("refuse kernels that look at data", RUNS),
        "_vmapmode_decrement_nesting": ("take gradients outside of vmap", GRADIENTS),
        "_vmapmode_increment_nesting": ("take gradients outside of vmap", GRADIENTS),
        "_will_engine_execute_node": ("compute the gradients that are asked for", GRADIENTS),
    },
    "torch._C._functions": {
        "DelayedError": ("return what cannot be differentiated again", GRADIENTS),
    },
    "torch._C._autograd": {
        "CreationMeta": ("know views that must not be written", VIEWS),
        "_get_creation_meta": ("know views that must not be written", VIEWS),
        "_get_current_graph_task_keep_graph": ("know that a graph is kept", GRADIENTS),
        "_pop_saved_tensors_default_hooks": ("leave hooks on saved tensors", THREADS),
        "_push_saved_tensors_default_hooks": ("enter hooks on saved tensors again", THREADS),
        "_saved_tensors_hooks_disable": ("forbid hooks on saved tensors again", THREADS),
        "_saved_tensors_hooks_enable": ("allow hooks on saved tensors again", THREADS),
        "_saved_tensors_hooks_get_disabled_error_message": (
            "know that hooks on saved tensors are forbidden", THREADS,
        ),
        "_saved_tensors_hooks_is_enabled": ("know that hooks on saved tensors are on", THREADS),
        "_top_saved_tensors_default_hooks": ("know hooks on saved tensors", THREADS),
        "_unsafe_set_version_counter": ("give values the versions of eager", VIEWS),
    },
    "torch._C._functorch": {
        "TransformType": ("know which level of torch.func is on", THREADS),
        "_func_decrement_nesting": ("leave levels of torch.func", THREADS),
        "_grad_decrement_nesting": ("leave levels of torch.func", THREADS),
        "_jvp_decrement_nesting": ("leave levels of torch.func", THREADS),
        "_vmap_decrement_nesting": ("leave levels of torch.func", THREADS),
        "get_dynamic_layer_stack_depth": ("count levels of torch.func", THREADS),
        "get_inplace_requires_grad_allowed": ("read the state of torch.func", THREADS),
        "peek_interpreter_stack": ("see that a transform of torch.func is on", MODES, THREADS),
        "set_inplace_requires_grad_allowed": ("restore the state of torch.func", THREADS),
        "unwrap_if_dead": ("take tensors out of levels that are left", GRADIENTS),
    },
    "torch._functorch.pyfunctorch": {
        "temporarily_clear_interpreter_stack": ("take gradients outside of levels", GRADIENTS),
    },
    "torch._library.custom_ops": {
        "_maybe_get_opdef": ("know the kernels of custom operators", OPERATORS),
    },
    "torch._ops": {
        "HigherOrderOperator": ("know operators that take functions", OPERATORS),
        "OpOverload": ("know operators", OPERATORS),
        "OpOverloadPacket": ("know operators", OPERATORS),
    },
    "torch.amp.autocast_mode": {
        "_enter_autocast": ("know autocast in a program", AUTOCAST),
        "_exit_autocast": ("know where autocast ends in a program", AUTOCAST),
    },
    "torch.autograd": {
        "Function._backward_cls": ("call a node by hand", GRADIENTS),
        "Variable._execution_engine": ("take gradients that no mode sees", GRADIENTS),
    },
    "torch.distributions": {
        "Distribution._validate_args": ("keep the checks of distributions", THREADS),
    },
    "torch.autograd.forward_ad": {"_current_level": ("see that forward-mode AD is on", MODES)},
    "torch.autograd.function": {
        "BackwardCFunction": ("know the node of a user's Function", OPERATORS),
    },
    "torch.autograd.grad_mode": {
        "_enter_inference_mode": ("know inference mode in a program", INFERENCE),
        "_exit_inference_mode": ("know where inference mode ends in a program", INFERENCE),
    },
    "torch.nn": {"Module._call_impl": ("call a module's graph with its hooks", GRAPHS)},
    "torch.nn.attention": {
        "_backend_from_string": ("know kernels that a program chooses", ATTENTION),
        "_cur_sdpa_kernel_backends": ("know the kernels that are allowed", ATTENTION),
        "_sdpa_kernel": ("know kernels that a program chooses", ATTENTION),
    },
    "torch.ops.aten": {
        "add.Tensor._dispatch_cache": ("replace a kernel", RUNS),
        "add.Tensor._overloadname": ("know the name of an operator", OPERATORS),
        "add.Tensor._overloadpacket": ("know the overloads of an operator", OPERATORS),
        "add.Tensor._schema": ("know what an operator writes", OPERATORS),
        "add.Tensor.py_kernels": ("replace a kernel", RUNS),
        "_assert_scalar.default": ("know assertions on data", OPERATORS),
        "_batch_norm_no_update.default": _STRIDES,
        "_batch_norm_with_update.default": _STRIDES,
        "_batch_norm_with_update_functional.default": _STRIDES,
        "_efficient_attention_forward.default": _HOST,
        "_embedding_bag.default": _SHAPES,
        "_embedding_bag_forward_only.default": _SHAPES,
        "_log_softmax_backward_data.default": _STRIDES,
        "_native_batch_norm_legit.default": _STRIDES,
        "_native_batch_norm_legit.no_stats": _STRIDES,
        "_native_batch_norm_legit_functional.default": _STRIDES,
        "_native_batch_norm_legit_no_training.default": _STRIDES,
        "_scaled_dot_product_efficient_attention.default": _HOST,
        "_scaled_dot_product_flash_attention_for_cpu.default": _STRIDES,
        "_softmax_backward_data.default": _TYPES,
        "_to_copy.default": _STRIDES,
        "_unsafe_view.default": ("have a view that is none for autograd", VIEWS),
    },
    "torch.overrides": {
        "_get_current_function_mode_stack": ("know which function modes are on", MODES),
    },
    "torch.utils": {"_pytree": ("walk through arguments as PyTorch does", OPERATORS)},
    "torch.utils._device": {
        "DeviceContext": ("know a default device", DEVICES),
        "_device_constructors": ("know functions that make tensors of none", GRAPHS),
    },
    "torch.utils._python_dispatch": {
        "TorchDispatchMode": ("record operators", RUNS),
        "_disable_current_modes": ("run what no mode sees", MODES),
        "_get_current_dispatch_mode": ("see that a dispatch mode is on", MODES),
        "_get_current_dispatch_mode_stack": ("know which dispatch modes are on", THREADS),
        "_pop_mode": ("restore dispatch modes", THREADS),
        "_push_mode": ("restore dispatch modes", THREADS),
    },
    "torch.utils.checkpoint": {
        "_StopRecomputationError": ("know that a checkpoint stops early", EARLY),
    },
}  # fmt: skip

_CALLED = {
    "_assert_scalar.default": "asserted_number",
    "_backend_from_string": "to_attention_backend",
    "_cur_sdpa_kernel_backends": "attention_backends",
    "_disable_current_modes": "without_dispatch_modes",
    "_dispatch_has_kernel_for_dispatch_key": "has_kernel",
    "_dispatch_key_parse": "dispatch_key",
    "_dispatch_keys": "key_set",
    "_enter_autocast": "enter_autocast",
    "_enter_inference_mode": "enter_inference_mode",
    "_exit_autocast": "exit_autocast",
    "_exit_inference_mode": "exit_inference_mode",
    "_get_current_dispatch_mode": "dispatch_mode",
    "_get_current_dispatch_mode_stack": "dispatch_mode_stack",
    "_get_current_function_mode_stack": "function_mode_stack",
    "_get_tracing_state": "tracing_state",
    "_is_fwd_grad_enabled": "takes_forward_gradients",
    "_jit_get_schemas_for_operator": "schemas",
    "_len_torch_dispatch_stack": "dispatch_modes",
    "_len_torch_function_stack": "function_modes",
    "_pop_torch_function_stack": "pop_function_mode",
    "_PreserveDispatchKeyGuard": "as_found_by_dispatcher",
    "_push_on_torch_function_stack": "push_function_mode",
    "_pytree": "pytree",
    "_saved_tensors_hooks_get_disabled_error_message": "disabled_hooks_message",
    "_sdpa_kernel": "sdpa_kernel",
    "_set_fwd_grad_enabled": "set_forward_gradients",
    "_set_grad_enabled": "set_gradients",
    "_StopRecomputationError": "StopRecomputation",
    "_batch_norm_no_update.default": "batch_norm_no_update",
    "_batch_norm_with_update.default": "batch_norm_with_update",
    "_batch_norm_with_update_functional.default": "batch_norm_with_update_functional",
    "_efficient_attention_forward.default": "efficient_attention_forward",
    "_embedding_bag.default": "embedding_bag",
    "_embedding_bag_forward_only.default": "embedding_bag_without_gradient",
    "_log_softmax_backward_data.default": "log_softmax_backward",
    "_softmax_backward_data.default": "softmax_backward",
    "_native_batch_norm_legit.default": "native_batch_norm_legit",
    "_native_batch_norm_legit.no_stats": "native_batch_norm_legit_no_stats",
    "_native_batch_norm_legit_functional.default": "native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training.default": "native_batch_norm_legit_no_training",
    "_scaled_dot_product_efficient_attention.default": "efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu.default": "attention_on_cpu",
    "_to_copy.default": "to_copy",
    "_unsafe_view.default": "unsafe_view",
    "get_dynamic_layer_stack_depth": "level_depth",
    "get_inplace_requires_grad_allowed": "writes_may_change_requires_grad",
    "set_inplace_requires_grad_allowed": "let_writes_change_requires_grad",
    "TensorBase": "TENSOR_BASE",
}
"""Our words for some names."""

NAMES = names_in(_USES, called=_CALLED)
"""The names in each module, as PyTorch 2.10 to 2.15 have them, with uses and features."""

STAND_INS: dict[str, Any] = {
    "StopRecomputation": (),  # no error is one: recomputations run to their ends
    "attention_backends": tuple,
    "_device_constructors": frozenset,
}
"""Values that serve in the place of missing names."""

__getattr__ = finder(globals(), NAMES, STAND_INS)


def forget() -> None:
    """Look for all names again when they are next imported."""
    lookup.forget(globals(), NAMES)

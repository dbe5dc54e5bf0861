"""Private names of PyTorch that tj uses at run time and to tell operators apart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import overrides
from torch._functorch import pyfunctorch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.autograd import forward_ad
from torch.nn import attention
from torch.utils import _pytree as pytree
from torch.utils import checkpoint
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

__all__ = [
    "TENSOR_BASE",
    "DeviceContext",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "StopRecomputation",
    "TorchDispatchMode",
    "allow_saved_tensors_hooks",
    "as_found_by_dispatcher",
    "attention_backends",
    "backward_keeps_graph",
    "below_functionalization",
    "disabled_hooks_message",
    "dispatch_key",
    "dispatch_keys",
    "dispatch_mode",
    "dispatch_mode_stack",
    "dispatch_modes",
    "engine_gradients",
    "enter_autocast",
    "enter_inference_mode",
    "exit_autocast",
    "exit_inference_mode",
    "forward_level",
    "function_mode_stack",
    "function_modes",
    "functorch",
    "has_kernel",
    "key_set",
    "leave_levels",
    "mkldnn_enabled",
    "operator_names",
    "outside_levels",
    "pack_hook",
    "pop_function_mode",
    "push_function_mode",
    "pytree",
    "saved_tensors_are_hooked",
    "schemas",
    "sdpa_kernel",
    "set_dispatch_mode_stack",
    "set_forward_gradients",
    "set_function_mode_stack",
    "set_gradients",
    "set_version_counter",
    "takes_forward_gradients",
    "to_attention_backend",
    "tracing_state",
    "unsafe_view",
    "without_dispatch_modes",
]

_C: Any = torch._C

TENSOR_BASE = _C.TensorBase

StopRecomputation: Any = getattr(checkpoint, "_StopRecomputationError", ())
"""Error that ends the recomputation of a checkpoint early; an empty tuple in versions without."""

# ---------------------------------------------------------------------------- modes

functorch: Any = _C._functorch
dispatch_mode = _get_current_dispatch_mode
dispatch_modes = _C._len_torch_dispatch_stack
function_modes = _C._len_torch_function_stack
function_mode_stack: Callable[[], list[Any]] = overrides._get_current_function_mode_stack
push_function_mode = _C._push_on_torch_function_stack
pop_function_mode = _C._pop_torch_function_stack
without_dispatch_modes = _disable_current_modes
dispatch_mode_stack = _get_current_dispatch_mode_stack
as_found_by_dispatcher = _C._PreserveDispatchKeyGuard


def below_functionalization() -> bool:
    """Tell whether a ``__torch_dispatch__`` runs: PyTorch's layers above it are switched off."""
    excluded: bool = _C._dispatch_tls_is_dispatch_key_excluded(_C.DispatchKey.Functionalize)
    return excluded


def dispatch_keys() -> tuple[int, int]:
    """The keys that the dispatcher includes and excludes in this thread, as bits."""
    included, excluded = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    return included.raw_repr(), excluded.raw_repr()


def set_function_mode_stack(modes: Sequence[Any]) -> None:
    """Let ``modes`` be the ``__torch_function__`` modes that are on."""
    for _ in range(function_modes()):
        pop_function_mode()
    for mode in modes:
        push_function_mode(mode)


def set_dispatch_mode_stack(modes: Sequence[TorchDispatchMode]) -> None:
    """Let ``modes`` be the ``__torch_dispatch__`` modes that are on."""
    for _ in range(dispatch_modes()):
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


tracing_state = _C._get_tracing_state
mkldnn_enabled = _C._get_mkldnn_enabled


def leave_levels(depth: int) -> None:
    """Leave levels of `torch.func` until there are ``depth``.

    PyTorch's own function for that cannot leave those of vmap in all versions (2.10).
    """
    leave = {
        functorch.TransformType.Grad: functorch._grad_decrement_nesting,
        functorch.TransformType.Jvp: functorch._jvp_decrement_nesting,
        functorch.TransformType.Vmap: functorch._vmap_decrement_nesting,
        functorch.TransformType.Functionalize: functorch._func_decrement_nesting,
    }
    while functorch.get_dynamic_layer_stack_depth() > depth:
        leave[functorch.peek_interpreter_stack().key()]()


@contextlib.contextmanager
def outside_levels() -> Iterator[None]:
    """Inside, operations run outside of all levels of `torch.func` and of the vmap of autograd.

    The latter is that of ``torch.autograd.grad(..., is_grads_batched=True)``.
    """
    batched = _C._vmapmode_increment_nesting() - 1
    _C._vmapmode_decrement_nesting()
    for _ in range(batched):
        _C._vmapmode_decrement_nesting()
    try:
        with pyfunctorch.temporarily_clear_interpreter_stack():
            yield
    finally:
        for _ in range(batched):
            _C._vmapmode_increment_nesting()


def forward_level() -> int:
    """The level of forward-mode AD that is entered; negative outside."""
    return forward_ad._current_level


# ---------------------------------------------------------------------------- recorded contexts
#
# What captured programs call to enter and leave contexts.

set_gradients = _C._set_grad_enabled
enter_autocast = torch.amp.autocast_mode._enter_autocast
exit_autocast = torch.amp.autocast_mode._exit_autocast
enter_inference_mode = torch.autograd.grad_mode._enter_inference_mode
exit_inference_mode = torch.autograd.grad_mode._exit_inference_mode
to_attention_backend = attention._backend_from_string
sdpa_kernel = attention._sdpa_kernel
attention_backends = attention._cur_sdpa_kernel_backends

# ---------------------------------------------------------------------------- operators

schemas = _C._jit_get_schemas_for_operator


def operator_names(library: str) -> list[str]:
    """The names of a library's operators, without their overloads."""
    names = (name.partition(".")[0] for name in _C._dispatch_get_all_op_names())
    return sorted({n.removeprefix(f"{library}::") for n in names if n.startswith(f"{library}::")})


has_kernel = _C._dispatch_has_kernel_for_dispatch_key
unsafe_view = torch.ops.aten._unsafe_view

# ---------------------------------------------------------------------------- tensors

key_set = _C._dispatch_keys
"""The dispatch key set of a tensor, by which operations choose kernels."""

dispatch_key = _C._dispatch_key_parse
"""The member of such a set that has some name."""

# ---------------------------------------------------------------------------- autograd

takes_forward_gradients = _C._is_fwd_grad_enabled
set_forward_gradients = _C._set_fwd_grad_enabled


def set_version_counter(tensor: torch.Tensor, count: int) -> None:
    """Let the version counter of ``tensor`` be ``count``."""
    _C._autograd._unsafe_set_version_counter((tensor,), (count,))


def backward_keeps_graph() -> bool:
    """Test if the running backward keeps the graph; True where none runs."""
    return bool(_C._autograd._get_current_graph_task_keep_graph())


def engine_gradients(
    roots: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None],
    *,
    create_graph: bool,
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` with ``allow_unused``, which no ``__torch_function__`` is asked for."""
    engine: Any = torch.autograd.Variable._execution_engine
    found: tuple[torch.Tensor | None, ...] = engine.run_backward(
        tuple(roots), tuple(tangents), create_graph, create_graph, tuple(inputs), True, False
    )
    return found


def saved_tensors_are_hooked() -> bool:
    """Test for active `torch.autograd.graph.saved_tensors_hooks`."""
    return _C._autograd._top_saved_tensors_default_hooks(False) is not None


def pack_hook() -> Any:
    """The hook that packs what autograd saves now; None if there is none."""
    hooks = _C._autograd._top_saved_tensors_default_hooks(False)
    return None if hooks is None else hooks[0]


def disabled_hooks_message() -> str | None:
    """Message of the error where hooks on saved tensors are not allowed; None if they are."""
    message: str | None = _C._autograd._saved_tensors_hooks_get_disabled_error_message()
    return message


def allow_saved_tensors_hooks(message: str | None) -> None:
    """Allow hooks on saved tensors, or forbid them with ``message``."""
    if message is None:
        _C._autograd._saved_tensors_hooks_enable()
    else:
        _C._autograd._saved_tensors_hooks_disable(message)

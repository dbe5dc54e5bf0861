"""Private names of PyTorch that tj uses at run time and to tell operators apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from tj_torch.torch_private.eager import (
    TENSOR_BASE,
    DelayedError,
    DispatchKey,
    StopRecomputation,
    TransformType,
    _dispatch_dump,
    _dispatch_get_all_op_names,
    _dispatch_tls_is_dispatch_key_excluded,
    _dispatch_tls_local_exclude_set,
    _dispatch_tls_local_include_set,
    _enter_dual_level,
    _exit_dual_level,
    _func_decrement_nesting,
    _get_current_graph_task_keep_graph,
    _grad_decrement_nesting,
    _jvp_decrement_nesting,
    _maybe_get_opdef,
    _pop_mode,
    _push_mode,
    _saved_tensors_hooks_disable,
    _saved_tensors_hooks_enable,
    _top_saved_tensors_default_hooks,
    _unsafe_set_version_counter,
    _vmap_decrement_nesting,
    _vmapmode_decrement_nesting,
    _vmapmode_increment_nesting,
    _will_engine_execute_node,
    as_found_by_dispatcher,
    attention_backends,
    disabled_hooks_message,
    dispatch_key,
    dispatch_mode,
    dispatch_mode_stack,
    dispatch_modes,
    enter_autocast,
    enter_inference_mode,
    exit_autocast,
    exit_inference_mode,
    function_mode_stack,
    function_modes,
    has_kernel,
    key_set,
    let_writes_change_requires_grad,
    level_depth,
    peek_interpreter_stack,
    pop_function_mode,
    push_function_mode,
    schemas,
    sdpa_kernel,
    set_forward_gradients,
    set_gradients,
    takes_forward_gradients,
    temporarily_clear_interpreter_stack,
    to_attention_backend,
    tracing_state,
    unsafe_view,
    unwrap_if_dead,
    without_dispatch_modes,
    writes_may_change_requires_grad,
)

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
    from torch.utils import _pytree as pytree
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    from tj_torch.torch_private.eager import (
        DeviceContext,
        HigherOrderOperator,
        OpOverload,
        OpOverloadPacket,
        TorchDispatchMode,
        pytree,
    )

__all__ = [
    "TENSOR_BASE",
    "DelayedError",
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
    "custom_kernels_of",
    "disabled_hooks_message",
    "dispatch_key",
    "dispatch_keys",
    "dispatch_mode",
    "dispatch_mode_stack",
    "dispatch_modes",
    "distributions_as_checked",
    "engine_gradients",
    "enter_autocast",
    "enter_inference_mode",
    "entered_dual_level",
    "exit_autocast",
    "exit_inference_mode",
    "forward_level",
    "function_mode_stack",
    "function_modes",
    "has_kernel",
    "is_executed",
    "key_set",
    "leave_dual_levels",
    "leave_levels",
    "let_writes_change_requires_grad",
    "level_depth",
    "operator_names",
    "outside_levels",
    "pack_hook",
    "peek_interpreter_stack",
    "pop_function_mode",
    "push_function_mode",
    "pytree",
    "registrations_of",
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
    "unwrap_if_dead",
    "without_dispatch_modes",
    "writes_may_change_requires_grad",
]

# ---------------------------------------------------------------------------- modes


def below_functionalization() -> bool:
    """Tell whether a ``__torch_dispatch__`` runs: PyTorch's layers above it are switched off."""
    excluded: bool = _dispatch_tls_is_dispatch_key_excluded(DispatchKey.Functionalize)
    return excluded


def dispatch_keys() -> tuple[int, int]:
    """The keys that the dispatcher includes and excludes in this thread, as bits."""
    included, excluded = _dispatch_tls_local_include_set(), _dispatch_tls_local_exclude_set()
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


def leave_levels(depth: int) -> None:
    """Leave levels of `torch.func` until there are ``depth``.

    PyTorch's own function for that cannot leave those of vmap in all versions (2.10).
    """
    leave = {
        TransformType.Grad: _grad_decrement_nesting,
        TransformType.Jvp: _jvp_decrement_nesting,
        TransformType.Vmap: _vmap_decrement_nesting,
        TransformType.Functionalize: _func_decrement_nesting,
    }
    while level_depth() > depth:
        leave[peek_interpreter_stack().key()]()


@contextlib.contextmanager
def outside_levels() -> Iterator[None]:
    """Inside, operations run outside of all levels of `torch.func` and of the vmap of autograd.

    The latter is that of ``torch.autograd.grad(..., is_grads_batched=True)``.
    """
    batched = _vmapmode_increment_nesting() - 1
    _vmapmode_decrement_nesting()
    for _ in range(batched):
        _vmapmode_decrement_nesting()
    try:
        with temporarily_clear_interpreter_stack():
            yield
    finally:
        for _ in range(batched):
            _vmapmode_increment_nesting()


def forward_level() -> int:
    """The level of forward-mode AD that is entered; negative outside."""
    return forward_ad._current_level


def entered_dual_level() -> int:
    """The level of forward-mode AD that operators see; negative outside.

    Captured programs enter it below `torch.autograd.forward_ad`, which counts its own alone.
    """
    try:
        # In one step of the interpreter: the level is that of all threads, and another one that
        # enters it meanwhile would fail.
        next(map(_exit_dual_level, iter(_enter_dual_level, None)))
    except RuntimeError:  # PyTorch has one level, which is entered
        return 0
    return -1


def leave_dual_levels(level: int) -> None:
    """Leave levels of forward-mode AD that were entered after ``level``."""
    while forward_level() > level:
        forward_ad.exit_dual_level()
    while (entered := entered_dual_level()) > level:
        _exit_dual_level(level=entered)


# ---------------------------------------------------------------------------- operators


def operator_names(library: str) -> list[str]:
    """The names of a library's operators, without their overloads."""
    names = (name.partition(".")[0] for name in _dispatch_get_all_op_names())
    return sorted({n.removeprefix(f"{library}::") for n in names if n.startswith(f"{library}::")})


def custom_kernels_of(operator: OpOverload) -> tuple[Any, ...] | None:
    """The functions of an operator of `torch.library.custom_op`; None for any other."""
    defined = _maybe_get_opdef(operator)
    return None if defined is None else (defined._init_fn, *defined._backend_fns.values())


def registrations_of(operator: OpOverload) -> str:
    """PyTorch's list of an operator's kernels, with the places where they were registered."""
    return str(_dispatch_dump(operator.name()))


# ---------------------------------------------------------------------------- autograd


def set_version_counter(tensor: torch.Tensor, count: int) -> None:
    """Let the version counter of ``tensor`` be ``count``."""
    _unsafe_set_version_counter((tensor,), (count,))


def backward_keeps_graph() -> bool:
    """Test if the running backward keeps the graph; True where none runs."""
    return bool(_get_current_graph_task_keep_graph())


def is_executed(node: Any) -> bool:
    """Test if the running backward computes what ``node`` takes; True where that is not known."""
    try:
        return node is None or bool(_will_engine_execute_node(node))
    except RuntimeError:
        # No backward runs, or `torch.autograd.grad` returns the gradient of this leaf.
        return True


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
    return _top_saved_tensors_default_hooks(False) is not None


def pack_hook() -> Any:
    """The hook that packs what autograd saves now; None if there is none."""
    hooks = _top_saved_tensors_default_hooks(False)
    return None if hooks is None else hooks[0]


def allow_saved_tensors_hooks(message: str | None) -> None:
    """Allow hooks on saved tensors, or forbid them with ``message``."""
    if message is None:
        _saved_tensors_hooks_enable()
    else:
        _saved_tensors_hooks_disable(message)


@contextlib.contextmanager
def distributions_as_checked() -> Iterator[None]:
    """Keep the setting with which distributions check their arguments.

    Dynamo's first hook switches it off for the whole process, eager calls too (`TorchPatcher.patch`
    in torch/_dynamo/eval_frame.py of 2.13 and 2.14).
    """
    checked = torch.distributions.Distribution._validate_args
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checked)

"""Guards on modes and global state; modes and tracers under which the original function runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.ops.context.ambient import ambient_context
from tj_torch.runtime.modes import device_modes, function_mode_is_on
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import (
    below_functionalization,
    dispatch_mode,
    dispatch_modes,
    forward_level,
    function_modes,
    peek_interpreter_stack,
    pytree,
    tracing_state,
)

if TYPE_CHECKING:
    import types

    from tj_torch.guards.guard import Guards

__all__ = [
    "ambient_check",
    "ambient_mode",
    "ambient_texts",
    "below_mode",
    "guard_modes",
    "interpreting",
    "mode_counters",
]


def ambient_mode() -> str | None:
    """Name of an active mode under which the original function must run, None if there is none.

    vmap, torch.func transforms, a dispatch mode such as FakeTensorMode, a ``__torch_function__``
    mode other than a default device, export, jit tracing and forward-mode AD all change what
    operations do; a program captured outside of them would not.
    """
    if peek_interpreter_stack() is not None:
        return "a torch.func transform"
    if dispatch_mode() is not None:
        return "a dispatch mode"
    if function_mode_is_on():
        return "a __torch_function__ mode"
    if tracing_state() is not None:
        # It records operators as they run: those of compiled kernels would not be in its graph.
        return "torch.jit.trace"
    if torch.compiler.is_exporting():
        return "torch.export"
    return below_mode()


def below_mode() -> str | None:
    """Name of a mode under which not even parts of a program may be compiled, or None."""
    if forward_level() >= 0:
        return "forward-mode AD"
    return "the __torch_dispatch__ of a tensor" if below_functionalization() else None


def interpreting(values: Any) -> str | None:
    """Name of what interprets the program by its arguments: fake tensors or a tracer; or None."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, torch.fx.Proxy):
            return "torch.fx.symbolic_trace"
        if isinstance(leaf, torch.Tensor) and private.is_fake(leaf):
            return "fake tensors"
    return None


def mode_counters() -> tuple[Callable[[], int], types.ModuleType]:
    """State that `ambient_mode` reads, and that guards on tensors do not show.

    A function for the number of dispatch modes (FakeTensorMode is hidden from guards), and the
    module whose ``_current_level`` is the level of forward-mode AD, which is negative outside of
    it.
    """
    return dispatch_modes, torch.autograd.forward_ad


def ambient_check() -> Callable[[], bool]:
    """Make a check that global state is as now, and that `ambient_mode` is None.

    The state: grad and inference mode, autocast, default data type and device, deterministic
    algorithms.
    """
    from tj_torch.torch_private.dynamo import GlobalStateGuard

    state = GlobalStateGuard().check
    duals, interpreter = torch.autograd.forward_ad, peek_interpreter_stack
    functions, modes, tracing = function_modes, dispatch_modes, tracing_state
    # `GlobalStateGuard` compares grad mode, autocast and the like, neither inference mode nor
    # stacks of modes.
    inference, expected = torch.is_inference_mode_enabled, torch.is_inference_mode_enabled()
    devices = device_modes()
    # A default device is a function mode, too (`DeviceContext` in torch/utils/_device.py).
    count = len(devices or ())

    def check() -> bool:
        return (
            state()
            and functions() == count
            and not modes()
            and duals._current_level < 0
            and interpreter() is None
            and tracing() is None
            and inference() is expected
            and (not count or device_modes() == devices)
        )

    return check


def guard_modes(guards: Guards) -> None:
    """Guard that `ambient_mode` is None, for programs without tensor arguments.

    Guards on tensors show such a mode.
    """
    guards.add(f"{guards.bind('mode', ambient_mode)}() is None")


def ambient_texts() -> tuple[str, ...]:
    """State that `ambient_check` compares, as text to be printed."""
    context = (f"{key} is {value}" for key, value in ambient_context().items)
    return (
        *context,
        f"torch.get_default_dtype() == {torch.get_default_dtype()}",
        f"torch.get_default_device() == {torch.get_default_device()}",
    )

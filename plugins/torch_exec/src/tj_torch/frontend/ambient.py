"""Is something else interpreting the program right now? Then tj stays out of its way."""

from __future__ import annotations

import torch

__all__ = ["ambient_mode"]


def ambient_mode() -> str | None:
    """The name of an active mode under which the original function must run, or None.

    vmap, torch.func transforms, a dispatch mode such as FakeTensorMode, export, jit tracing and
    forward-mode AD all give operations another meaning, which a program captured outside of them
    does not have.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a torch.func transform"
    if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
        return "a dispatch mode"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if torch.compiler.is_exporting():
        return "torch.export"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode AD"
    return None

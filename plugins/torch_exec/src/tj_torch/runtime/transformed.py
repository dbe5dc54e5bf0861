"""Regions that run inside a level of `torch.func`, or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["transformed"]


def transformed(body: Callable[..., Any], /, *args: Any) -> Any:
    """Call ``body``, which enters levels of `torch.func` and leaves them.

    If it raises, it has left none; they are left for it, as the context managers of `torch.func`
    do, and the error goes on.
    """
    functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
    hooks: Any = torch._C._autograd  # type: ignore[attr-defined]
    depth = functorch.get_dynamic_layer_stack_depth()
    dual = forward_ad._current_level
    forward = torch._C._is_fwd_grad_enabled()
    allowed = functorch.get_inplace_requires_grad_allowed()
    message = hooks._saved_tensors_hooks_get_disabled_error_message()
    try:
        return body(*args)
    except BaseException:
        while forward_ad._current_level > dual:
            forward_ad.exit_dual_level()
        functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        functorch.set_inplace_requires_grad_allowed(allowed)
        torch._C._set_fwd_grad_enabled(forward)
        if message is None:
            hooks._saved_tensors_hooks_enable()
        else:
            hooks._saved_tensors_hooks_disable(message)
        raise

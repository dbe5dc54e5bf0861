"""Run regions that enter levels of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_torch.torch_private.runtime import (
    allow_saved_tensors_hooks,
    disabled_hooks_message,
    entered_dual_level,
    leave_dual_levels,
    leave_levels,
    let_writes_change_requires_grad,
    level_depth,
    set_forward_gradients,
    takes_forward_gradients,
    writes_may_change_requires_grad,
)

__all__ = ["transformed"]


def transformed(body: Callable[..., Any], /, *args: Any) -> Any:
    """Call ``body``, which enters and leaves levels of `torch.func`.

    If it raises, its levels are left here, as the context managers of `torch.func` do, and the
    error propagates.
    """
    depth = level_depth()
    dual = entered_dual_level()
    forward = takes_forward_gradients()
    allowed = writes_may_change_requires_grad()
    message = disabled_hooks_message()
    try:
        return body(*args)
    except BaseException:
        leave_dual_levels(dual)
        leave_levels(depth)
        let_writes_change_requires_grad(allowed)
        set_forward_gradients(forward)
        allow_saved_tensors_hooks(message)
        raise

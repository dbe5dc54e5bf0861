"""Guards that nothing hides a parameter, a buffer or a submodule of a module.

Python finds what the module's own dict has first. ``module.name = value`` puts nothing there that
would hide a member, but ``object.__setattr__`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.computed_attributes import guard_absence
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["guard_hidden_members"]


def guard_hidden_members(stack: ExitStack) -> None:
    """Guard it for each member that the program reads."""
    from tj_torch.torch_private.dynamo import nn_module

    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        def manually_trace_nn_module_getattr(self: Any, tx: Any, name: str) -> Any:
            if self.source is not None:
                guard_absence(self, name)
            return original(self, tx, name)

        return manually_trace_nn_module_getattr

    owner = nn_module.UnspecializedNNModuleVariable
    replace(stack, owner, "manually_trace_nn_module_getattr", reading)

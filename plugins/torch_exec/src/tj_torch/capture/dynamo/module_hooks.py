"""Guards that modules have no hooks: one for each module, where Dynamo has one for each dict.

torch.compile leaves them out by default, and does not see hooks that are registered later. With six
guards for each module, they took a quarter of all time in a RegNet of 100 modules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.read_values import name_of, value_of
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["guard_hooks_at_once"]

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip
"""The dicts that `torch.nn.Module.__call__` looks at, and that Dynamo guards."""


def has_no_hooks(own: Mapping[str, Any]) -> bool:
    """Check that the dicts of hooks in ``own``, the dict of a module, are empty."""
    # Spelled out: it runs for each module in each call.
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or own["_forward_hooks_with_kwargs"]
        or own["_forward_pre_hooks_with_kwargs"]
    )


def guard_hooks_at_once(stack: ExitStack) -> None:
    """Guard with `has_no_hooks` that all six are empty, where each would be guarded to be."""
    from tj_torch.torch_private.dynamo import GuardBuilder

    replace(stack, GuardBuilder, "EMPTY_NN_MODULE_HOOKS_DICT", _at_once)


def _at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import GuardManagerType, get_verbose_code_parts

    # Guards are known by the names, and the attributes, of these functions.
    @functools.wraps(original)
    def guard_hooks(self: Any, guard: Any) -> None:
        base = getattr(guard.originating_source, "base", None)
        module = None if base is None else value_of(self, base)
        own = vars(module) if isinstance(module, torch.nn.Module) else {}
        if any(name not in own for name in HOOKS) or not has_no_hooks(own):
            original(self, guard)
            return
        name = name_of(base)
        guarded = vars(self).setdefault("tj_modules_without_hooks", set())
        if name in guarded:
            return
        guarded.add(name)
        manager = self.get_guard_manager_from_source(base).get_generic_dict_manager(
            source=f"{name}.__dict__",
            example_value=own,
            guard_manager_enum=GuardManagerType.GUARD_MANAGER,
        )
        code = [f"{name} has no hooks"]
        manager.add_lambda_guard(
            has_no_hooks, get_verbose_code_parts(code, guard), guard.user_stack
        )

    return guard_hooks

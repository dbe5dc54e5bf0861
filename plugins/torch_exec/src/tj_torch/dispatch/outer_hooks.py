"""Hooks of a jitted module that run around its program, since Dynamo must not capture them.

``fully_shard`` gathers parameters in a forward pre-hook and frees them in a forward hook, and tells
Dynamo to skip both. Captured with the module, they would break its graph. Around the program they
run as in eager, like hooks on the result of ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tj_torch.guards.modules import GLOBAL_HOOKS
from tj_torch.torch_private.texts import OUTER_HOOKS

__all__ = ["around", "has_outer_hooks"]


def has_outer_hooks(module: Any) -> bool:
    """Test if ``module`` has hooks, all of which must run around its program.

    False if some of them are captured, since their order with the others is kept only inside of the
    module's own call. False as well for hooks of gradients and for hooks on all modules.
    """
    if not isinstance(module, torch.nn.Module):
        return False
    before, after = module._forward_pre_hooks, module._forward_hooks
    if not (before or after) or module._backward_hooks or module._backward_pre_hooks:
        return False
    # These run even where `forward` raises, which `around` does not do.
    if module._forward_hooks_always_called or any(map(_on_all_modules, GLOBAL_HOOKS)):
        return False
    return all(map(_is_outer, (*before.values(), *after.values())))


def _on_all_modules(name: str) -> bool:
    return bool(getattr(torch.nn.modules.module, name))


def _is_outer(hook: Any) -> bool:
    function = getattr(hook, "__func__", hook)
    if getattr(function, "_torchdynamo_disable", False):  # what torch.compiler.disable returns
        return True
    return str(getattr(function, "__module__", None)).startswith(OUTER_HOOKS)


def around(
    module: torch.nn.Module, original: Callable[[], Any], program: Callable[..., Any]
) -> Callable[..., Any]:
    """``program``, a compiled ``forward``, with the hooks of ``module`` around each call.

    ``original`` returns the bound ``__call__`` of the jitted module, which the hooks are given.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        called = original().__self__
        args, kwargs = _before(module, called, args, kwargs)
        return _after(module, called, args, kwargs, program(*args, **kwargs))

    return call


def _before(
    module: torch.nn.Module, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as the forward pre-hooks change them; as in ``torch.nn.Module._call_impl``.

    :raises RuntimeError: for a hook with keywords that returns something else than a pair.
    """
    for number, hook in _listed(module._forward_pre_hooks):
        if number in module._forward_pre_hooks_with_kwargs:
            found = hook(called, args, kwargs)
            if found is None:
                continue
            if not (isinstance(found, tuple) and len(found) == 2):
                raise RuntimeError(
                    "forward pre-hook must return None or a tuple "
                    f"of (new_args, new_kwargs), but got {found}."
                )
            args, kwargs = found
        else:
            found = hook(called, args)
            if found is not None:
                # As `_call_impl` does: a hook may return a single argument as it is.
                args = found if isinstance(found, tuple) else (found,)
    return args, kwargs


def _after(
    module: torch.nn.Module,
    called: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
) -> Any:
    """Result as the forward hooks change it."""
    for number, hook in _listed(module._forward_hooks):
        if number in module._forward_hooks_with_kwargs:
            found = hook(called, args, kwargs, result)
        else:
            found = hook(called, args, result)
        if found is not None:
            result = found
    return result


def _listed(hooks: Any) -> Iterable[tuple[int, Callable[..., Any]]]:
    """Hooks as they are when the first one runs: one may add or remove others."""
    return tuple(hooks.items())

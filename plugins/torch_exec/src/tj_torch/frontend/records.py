"""The frontends tj-torch registers."""

from __future__ import annotations

from typing import Any

import torch
from tj_core.jitted import Jitted
from tj_core.records import Frontend

from tj_torch.dialects import TorchDialects
from tj_torch.frontend.compile import GraphCompiler
from tj_torch.frontend.dispatch import Dispatcher, HookDispatcher, wrap_function
from tj_torch.frontend.module import wrap_module

__all__ = ["frontends"]


def frontends() -> tuple[Frontend, ...]:
    """``dynamo``, the default, and ``dynamo_hook``, for programs with graph breaks.

    ``dynamo`` captures whole programs and dispatches calls itself; at a graph break it turns to
    the other, which compiles the program's parts through PyTorch's eval-frame hook.
    """
    return (
        Frontend("dynamo", callable, _own_dispatch, priority=10),
        Frontend("dynamo_hook", callable, _hook_dispatch),
    )


def _own_dispatch(fn: Any, jitted: Jitted) -> Any:
    return _wrap(fn, jitted, Dispatcher)


def _hook_dispatch(fn: Any, jitted: Jitted) -> Any:
    return _wrap(fn, jitted, HookDispatcher)


def _wrap(fn: Any, jitted: Jitted, dispatcher: type[Dispatcher]) -> Any:
    compiler = GraphCompiler(jitted, TorchDialects.of(jitted.session))
    made = dispatcher(fn, jitted, compiler)
    return wrap_module(fn, made) if isinstance(fn, torch.nn.Module) else wrap_function(fn, made)

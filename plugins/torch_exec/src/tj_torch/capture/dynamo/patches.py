"""How Dynamo is corrected, and kept away: for one capture, or from code for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import CodeType
from typing import Any, NoReturn

import torch

__all__ = ["inside_dispatch", "leave", "replace", "stop"]


def replace(
    stack: ExitStack, owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]
) -> None:
    """Set ``owner.name`` to what ``make`` makes of it, until ``stack`` is left."""
    original = owner.__dict__[name]
    stack.callback(setattr, owner, name, original)
    setattr(owner, name, make(original))


def stop(what: str) -> NoReturn:
    """Break the graph at ``what``."""
    from torch._dynamo import exc

    raise exc.Unsupported(what)


def inside_dispatch() -> bool:
    """Whether a ``__torch_dispatch__`` runs: PyTorch's layers above it are switched off."""
    functionalize = torch._C.DispatchKey.Functionalize
    excluded: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(functionalize)
    return excluded


def leave(codes: Iterable[CodeType]) -> None:
    """Make PyTorch's hook run frames of ``codes`` as they are, until it is reset."""
    from torch._dynamo.eval_frame import skip_code

    for code in codes:
        skip_code(code)

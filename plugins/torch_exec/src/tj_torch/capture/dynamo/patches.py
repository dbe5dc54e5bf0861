"""How Dynamo is corrected, and kept away: for one capture, or from code for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any, NoReturn

import torch
from tj_core.extend import CaptureError

__all__ = ["has", "inside_dispatch", "leave", "replace", "stop", "unprofiled"]


def replace(
    stack: ExitStack, owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]
) -> None:
    """Set ``owner.name`` to what ``make`` makes of it, until ``stack`` is left.

    :raises CaptureError: if this PyTorch has no such name; programs run in eager then.
    """
    if not has(owner, name):
        whose = getattr(owner, "__qualname__", owner)
        raise CaptureError(f"tj-torch does not know PyTorch {torch.__version__}: no {whose}.{name}")
    original = vars(owner)[name]
    stack.callback(setattr, owner, name, original)
    setattr(owner, name, make(original))


def has(owner: Any, name: str) -> bool:
    """Whether this PyTorch has ``owner.name``, there and not in a base: what `replace` takes."""
    return name in vars(owner)


def stop(what: str) -> NoReturn:
    """Break the graph at ``what``."""
    from torch._dynamo import exc

    raise exc.Unsupported(what)


def inside_dispatch() -> bool:
    """Whether a ``__torch_dispatch__`` runs: PyTorch's layers above it are switched off."""
    functionalize = torch._C.DispatchKey.Functionalize
    excluded: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(functionalize)
    return excluded


@contextmanager
def unprofiled() -> Iterator[None]:
    """Let Dynamo build guards without timing them: it flushes the caches first, in 20 ms.

    That is half of what a small program takes to compile, for a line in a log.
    """
    from torch._dynamo import guards

    with ExitStack() as stack:
        if "profile_guard_manager" in vars(guards):
            replace(stack, guards, "profile_guard_manager", lambda _: lambda *timed: 0.0)
        yield


def leave(codes: Iterable[CodeType]) -> None:
    """Make PyTorch's hook run frames of ``codes`` as they are, until it is reset."""
    from torch._dynamo.eval_frame import skip_code

    for code in codes:
        skip_code(code)

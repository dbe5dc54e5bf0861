"""``jitted.compile_for(*args, **kwargs)``: a program for a call like this one, without the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from tj_core.extend import CaptureError, PassError, TjError
from tj_core.internal import wait_for

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.sources import stack_source
from tj_torch.dispatch.fallbacks import first_lines
from tj_torch.guards.ambient import ambient_mode
from tj_torch.torch_private.ops import is_fake
from tj_torch.torch_private.runtime import pytree

if TYPE_CHECKING:
    from tj_torch.dispatch.dispatcher import Call, Dispatcher

__all__ = ["compile_for", "compiles_for", "prepare", "real"]

R = TypeVar("R")


def compiles_for(call: Callable[..., Any]) -> Callable[..., None]:
    """The function that compiles ahead for the callable ``call`` of a jitted program."""
    return getattr(call, "compile_for", _refuse)


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise TjError(
        "this frontend compiles in calls only",
        hint="compile_for is for programs that TorchDynamo captures: call this one",
    )


def compile_for(self: Any, *args: Any, **kwargs: Any) -> None:
    """Compile for a call with such arguments without running it; for jitted modules."""
    compiles_for(self._tj_call)(*args, **kwargs)


def prepare(dispatcher: Dispatcher[R], call: Call[R]) -> None:
    """Compile for ``call``, unless a program fits it, or calls are not to be compiled at all.

    :raises TjError: if there can be no program for such a call, with the reason.
    """
    name = dispatcher.jitted.name
    if dispatcher.switches.instead() is not None:
        return
    if mode := ambient_mode():
        raise TjError(f"compile_for of {name}: nothing is compiled under {mode}")
    if dispatcher.elsewhere is None and dispatcher.programs.outside(dispatcher) is None:
        try:
            dispatcher.compile(call)
            wait_for([dispatcher.jitted])
        except dispatcher.failures as error:
            failure = _reason(name, error)
        else:
            return
        raise failure  # outside of the handler: the error holds the arguments
    found = dispatcher.jitted.stats.fallbacks
    raise TjError(
        f"compile_for of {name}: it has no program of its own for a call",
        hint=found[-1].reason if found else "its hooks run around it: call it",
    )


def _reason(name: str, error: Exception) -> TjError:
    """The error for a program that cannot be compiled, because of ``error``."""
    if isinstance(error, CaptureError | PassError):
        return error.with_traceback(None)
    if isinstance(error, dynamo.CaptureFailure):
        said = "raises" if error.raised else "breaks its graph"
        reason = first_lines(error.reason)
        return CaptureError(f"{name} {said}: {reason}", source=stack_source(error.stack))
    lazy = "a lazy module gets its parameters in a call"
    hint = lazy if isinstance(error, dynamo.Uninitialized) else ""
    return CaptureError(f"{name}: {error}", hint=hint)


def real(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with real tensors in place of fake ones: of their metadata, with any values.

    :raises TjError: for a tensor on ``meta``, which does not say what device it stands for.
    """
    made: dict[int, torch.Tensor] = {}

    def given(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if is_fake(value):
            return made.setdefault(id(value), _empty(value))
        if value.is_meta:
            raise TjError(
                "compile_for: a tensor on meta does not say which device it stands for",
                hint="give a tensor of FakeTensorMode, or a real one",
            )
        return value

    found: tuple[Any, dict[str, Any]] = pytree.tree_map(given, (args, kwargs))
    return found


def _empty(fake: torch.Tensor) -> torch.Tensor:
    """A tensor with the metadata of ``fake``; the system has no memory for it until it is used."""
    size, strides = [int(n) for n in fake.shape], [int(n) for n in fake.stride()]
    made = torch.empty_strided(size, strides, dtype=fake.dtype, device=fake.device)
    return made.requires_grad_(fake.requires_grad)

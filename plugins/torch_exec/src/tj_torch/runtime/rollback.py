"""Errors of functional programs, which have written nothing when they raise.

In eager, writes before the error have happened, and the caller sees them. So the acquired program
runs instead, from the same arguments and random states, and raises; or the user's own program, if
it changes Python objects, too (`tj_torch.runtime.rerun`). A `PluginError`, from a kernel
that did not do what its trace says, is raised as it is: its writes cannot be undone. So is an error
after a region has written over what it needed of an argument (`mark_written`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.extend import PluginError, TjWarning
from tj_core.internal import has_written

from tj_torch.runtime.generators import NO_STATES, random_states, set_random_states
from tj_torch.runtime.packing import Acquired, is_of_hook
from tj_torch.runtime.rerun import undo

if TYPE_CHECKING:
    import torch

__all__ = ["raising", "unless_it_raises"]


class _Raised(Exception):
    """Mark of an ``error`` that the functional program raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def raising(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its errors marked, to tell them from the epilogue's."""

    def program(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise _Raised(error) from None

    return program


def unless_it_raises(
    run: Callable[..., Any],
    otherwise: Callable[..., Any],
    devices: Iterable[str],
    generators: Sequence[torch.Generator] = (),
    written: Sequence[int] = (),
) -> Callable[..., Any]:
    """``run``, or ``otherwise`` if a function marked by `raising` inside it raises.

    ``devices`` (as ``cuda:0``) are those whose default generators the program draws from,
    ``generators`` the ones it names. Arguments at positions ``written`` are written before the
    last saved tensor is packed: a pack hook's error after such a write is raised as it is.
    """
    drawn = sorted(set(devices))
    acquired = Acquired(otherwise)

    def computation(*args: Any) -> Any:
        states = random_states(drawn, generators) if drawn or generators else NO_STATES
        versions = [args[i]._version for i in written] if written else ()
        try:
            return run(*args)
        except _Raised as raised:
            error = raised.error
        if isinstance(error, PluginError) or has_written(error):
            raise error

        restore = functools.partial(set_random_states, states)
        if is_of_hook(error):
            try:
                if any(args[i]._version != v for i, v in zip(written, versions, strict=True)):
                    raise error
                restore()
                acquired.stop(args, error, restore)
            finally:
                del error  # its traceback holds this frame
        restore()
        text = f"{type(error).__name__}: {error}"
        try:
            undo(error)  # the user's own program runs
        finally:
            del error
        result = otherwise(*args)
        warnings.warn(
            f"tj: the functional form of a program raised {text}\n"
            "The acquired program did not, and its results are returned.",
            TjWarning,
            stacklevel=2,
        )
        return result

    return computation

"""Errors in the middle: a functional program that raises has written nothing yet.

The acquired program would have written what comes before the error, which its caller sees. So it
runs in the functional one's place, from the same arguments and random numbers, and raises there.
Not where an executor's kernel did something else than its trace says: what that has written cannot
be taken back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from tj_core.extend import PluginError, TjWarning

from tj_torch.runtime.generators import random_state, set_random_state
from tj_torch.runtime.packing import Acquired, is_of_hook

__all__ = ["raising", "unless_it_raises"]


class _Raised(Exception):
    """The functional program raised ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def raising(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose errors are marked: they are not those of its epilogue."""

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
    """``run``, or ``otherwise`` where something `raising` inside of it raises.

    ``devices`` are those whose random numbers are drawn, as in ``cuda:0``; ``generators`` those
    that the program names itself. Arguments at places in ``written`` are written before the last
    tensor is packed: if a hook on saved tensors raises then, that is all.
    """
    drawn = sorted(set(devices))
    acquired = Acquired(otherwise)

    def computation(*args: Any) -> Any:
        states = [(device, random_state(device)) for device in drawn] if drawn else ()
        own = [(g, g.get_state()) for g in generators] if generators else ()
        versions = [args[i]._version for i in written] if written else ()
        try:
            return run(*args)
        except _Raised as raised:
            error = raised.error
        if isinstance(error, PluginError):
            raise error

        def restore() -> None:
            for device, state in states:
                set_random_state(device, state)
            for generator, state in own:
                generator.set_state(state)

        if is_of_hook(error):
            try:
                if any(args[i]._version != v for i, v in zip(written, versions, strict=True)):
                    raise error
                restore()
                acquired.stop(args, error, restore)
            finally:
                del error  # its traceback holds this frame
        restore()
        result = otherwise(*args)
        warnings.warn(
            f"tj: the functional form of a program raised {type(error).__name__}: {error}\n"
            "The acquired program did not, and its results are returned.",
            TjWarning,
            stacklevel=2,
        )
        return result

    return computation

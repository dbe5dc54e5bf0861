"""Errors of programs that also change Python objects.

Dynamo applies such changes after the graph has run: if that raises, all of them are lost. In eager
those from before the error have happened. So the user's own program runs instead, after what the
graph has done is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tj_core.extend import PluginError

from tj_torch.runtime.generators import NO_STATES, random_states, set_random_states
from tj_torch.runtime.packing import is_of_hook

if TYPE_CHECKING:
    import torch

__all__ = ["Undone", "asking", "undo", "undoing"]


class Undone(BaseException):
    """Mark of an ``error`` of a program that has left no trace of its run.

    No `Exception`, so that no handler in an operator's Python code takes it for one.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


# Set in a call of one thread alone (`asking`).
_WANTED: ContextVar[bool] = ContextVar("wanted", default=False)


def undo(error: Exception) -> None:
    """Leave it to the caller to run the user's program, if it can; everything else is undone.

    :raises Undone: with ``error``, if so.
    """
    if _WANTED.get():
        raise Undone(error)


def asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, a program that writes, with `undo` in its functional form taking effect."""

    def computation(*args: Any) -> Any:
        token = _WANTED.set(True)
        try:
            return function(*args)
        finally:
            _WANTED.reset(token)

    return computation


def undoing(
    function: Callable[..., Any],
    devices: Sequence[str] = (),
    generators: Sequence[torch.Generator] = (),
) -> Callable[..., Any]:
    """``function``, which writes nothing that outlives it, with its errors as `Undone` ones.

    :param devices: the devices of default generators that ``function`` uses, as ``cuda:0``.
    :param generators: the other generators.
    """

    def computation(*args: Any) -> Any:
        states = random_states(devices, generators) if devices or generators else NO_STATES
        try:
            return function(*args)
        except PluginError:
            raise
        except Exception as error:  # whatever it is, the user's program raises its own
            if is_of_hook(error):  # the hook has seen tensors
                raise
            undone = Undone(error)
        set_random_states(states)
        try:
            raise undone
        finally:
            del undone  # its error's traceback holds this frame

    return computation

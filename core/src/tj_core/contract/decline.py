"""Declines, which carry a reason; and calls of plugins' checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tj_core.errors import PluginError, TjError

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol
    from tj_core.source import Source

__all__ = ["LEAVE_OUT", "Decline", "answer", "ask", "is_so"]

T = TypeVar("T")

LEAVE_OUT = "leave the executor out with tj.jit(..., executors=[...])"
"""Remedy for an executor that broke its contract, as a hint of errors."""


@dataclass(frozen=True, slots=True)
class Decline:
    """A refusal with its reason, which ``tj.explain`` shows.

    An executor declines a call, a transform declines a program. In the second case, compilation
    starts again from the acquired trace, without the transform and its plugin's transforms to later
    stages. ``source`` is the user's line behind the reason. ``keep_all_calls``: the program needs
    the errors of unused calls, too, so no call is removed or merged.
    """

    reason: str
    source: Source | None = None
    keep_all_calls: bool = False


def ask(
    whose: str, check: Callable[[BoundSymbol], bool | Decline] | None, call: BoundSymbol
) -> str | None:
    """Reason for which ``check`` refuses ``call``, None if it accepts or there is no check.

    ``whose`` names the check's owner in messages.

    :raises PluginError: if the check raises, or returns neither True nor a `Decline`.
    """
    verdict = True if check is None else answer(whose, check, call)
    if verdict is True:
        return None
    if isinstance(verdict, Decline):
        return verdict.reason
    raise PluginError(
        f"{whose} answered {verdict!r} in its check of {call.symbol}",
        source=call.source,
        hint='a check answers True, or Decline("why not")',
    )


def is_so(whose: str, question: Callable[[BoundSymbol], bool], call: BoundSymbol) -> bool:
    """Answer of the yes-or-no ``question`` of the plugin ``whose`` about ``call``.

    :raises PluginError: if the function raises, or returns neither True nor False.
    """
    verdict = answer(whose, question, call)
    if isinstance(verdict, bool):
        return verdict
    raise PluginError(
        f"{whose} answered {verdict!r} of {call.symbol}, and neither True nor False",
        source=call.source,
    )


def answer(whose: str, question: Callable[[BoundSymbol], T], call: BoundSymbol) -> T:
    """Result of the function ``question`` of the plugin ``whose`` for ``call``.

    :raises PluginError: if the function raises anything but a `TjError`.
    """
    try:
        return question(call)
    except TjError:
        raise
    except Exception as error:
        raise PluginError(
            f"{whose} failed in its check of {call.symbol}: {type(error).__name__}: {error}",
            source=call.source,
            hint=LEAVE_OUT,
        ) from error

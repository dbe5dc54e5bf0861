"""An answer of no, with a reason; and how plugins are asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tj_core.errors import PluginError, TjError
from tj_core.ir.trace import BoundSymbol
from tj_core.source import Source

__all__ = ["Decline", "answer", "ask", "is_so"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decline:
    """An answer of no, and why; shown by ``tj.explain``.

    An executor declines a call, a transform a program: that starts again from the acquired trace,
    without the transform and those of its plugin that make later stages. ``source`` is the user's
    line that the reason is found at. ``keep_all_calls``: errors of calls that nobody needs
    are wanted, too, so that nothing of the program is removed or merged.
    """

    reason: str
    source: Source | None = None
    keep_all_calls: bool = False


def ask(
    whose: str, check: Callable[[BoundSymbol], bool | Decline] | None, call: BoundSymbol
) -> str | None:
    """Why ``whose`` check refuses ``call``; None if it takes it, or if there is no check.

    :raises PluginError: if the check fails, or answers something else than True or a `Decline`.
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
    """What ``whose`` question, which has no reasons to give, says of ``call``.

    :raises PluginError: if it fails, or answers something else than True or False.
    """
    verdict = answer(whose, question, call)
    if isinstance(verdict, bool):
        return verdict
    raise PluginError(
        f"{whose} answered {verdict!r} of {call.symbol}, and neither True nor False",
        source=call.source,
    )


def answer(whose: str, question: Callable[[BoundSymbol], T], call: BoundSymbol) -> T:
    """What a function of ``whose`` says of ``call``.

    :raises PluginError: if it fails.
    """
    try:
        return question(call)
    except TjError:
        raise
    except Exception as error:
        raise PluginError(
            f"{whose} failed in its check of {call.symbol}: {type(error).__name__}: {error}",
            source=call.source,
            hint="leave the executor out with tj.jit(..., executors=[...])",
        ) from error

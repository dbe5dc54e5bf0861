"""Failures inside tj's own passes: an error in strict mode, else a program that falls back.

A program that PyTorch runs must run. So a failure of a pass of tj's own becomes a `PassError`,
which frontends turn into one warning and the original program. Errors with another cause (a plugin
that broke its contract, a configuration, rules that conflict) are raised unchanged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from tj_core.errors import (
    CaptureError,
    ConfigError,
    PassError,
    PluginError,
    RuleConflictError,
    RuleMissingError,
    TagError,
    TjError,
    TjWarning,
)
from tj_core.ir.trace import BoundSymbol
from tj_core.source import Source

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Locate", "call_of", "own_pass", "source_of", "warn_of"]

Locate = Callable[[Any], Source | None]
"""A function from the value of a pass's variable to its line in the user's program, or None."""

_OTHERS = (
    CaptureError,
    ConfigError,
    PassError,
    PluginError,
    RuleConflictError,
    RuleMissingError,
    TagError,
)
"""Errors that name their cause and remedy themselves, or that frontends handle."""


def call_of(value: Any) -> Source | None:
    """The source line of a call; None for other values."""
    return value.source if isinstance(value, BoundSymbol) else None


@dataclass(frozen=True)
class own_pass:
    """Turn a failure inside the block into the failure of tj's own pass ``name``.

    In ``strict`` mode errors are unchanged, and so are errors of the classes ``but``. ``locate``
    finds the user's line for an error without one. A class, since from Python 3.12 a context
    manager that is written as a generator keeps the frames of a replaced error alive, and their
    arguments.

    :raises PassError: in place of the error.
    """

    name: str
    _: KW_ONLY
    strict: bool
    locate: Locate = call_of
    but: tuple[type[Exception], ...] = ()

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise the `PassError`, if the block raised an error of tj's own."""
        if not isinstance(error, Exception) or isinstance(error, (*_OTHERS, *self.but)):
            return
        if not self.strict:
            raise PassError(self.name, error, source=source_of(error, self.locate)) from error


def warn_of(error: PassError) -> None:
    """Warn of a failure after capture, of a part that runs by the fallback executor instead."""
    warnings.warn(TjWarning(f"tj: {error}"), stacklevel=3)


def source_of(error: Exception, locate: Locate) -> Source | None:
    """The user's line behind ``error``: its own, else that of the innermost variable with one."""
    if isinstance(error, TjError) and error.source is not None:
        return error.source
    found = None
    for scope in _scopes(error.__traceback__):
        found = next(filter(None, map(locate, scope.values())), found)
    return found


def _scopes(traceback: TracebackType | None) -> Iterator[Mapping[str, Any]]:
    while traceback is not None:
        # Not this file's frames: `f_locals` keeps a frame's variables alive, here the error itself.
        if traceback.tb_frame.f_code.co_filename != __file__:
            yield traceback.tb_frame.f_locals
        traceback = traceback.tb_next

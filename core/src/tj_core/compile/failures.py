"""What fails inside tj's own passes: an error in strict mode, else a program that falls back.

A program that PyTorch runs must run. So a failure of a pass of tj's own becomes a `PassError`,
which frontends turn into one warning and the original program. What somebody else answers for (a
plugin that broke its contract, a configuration, rules that conflict) stays that error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from types import TracebackType
from typing import Any

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

__all__ = ["Locate", "call_of", "own_pass", "source_of", "warn_of"]

Locate = Callable[[Any], Source | None]
"""Where in the user's program something is that a pass holds in a variable; None if nowhere."""

_OTHERS = (
    CaptureError,
    ConfigError,
    PassError,
    PluginError,
    RuleConflictError,
    RuleMissingError,
    TagError,
)
"""Errors that say themselves who is to mend what, or that frontends know."""


def call_of(value: Any) -> Source | None:
    """The line of a call."""
    return value.source if isinstance(value, BoundSymbol) else None


@dataclass(frozen=True)
class own_pass:
    """What fails inside is a failure of tj's own pass ``name``.

    In ``strict`` mode it stays as it is, and so do errors of the classes ``but``. ``locate`` finds
    the user's line, where the error has none. A class: from Python 3.12, a context manager that is
    written as a generator keeps the frames of an error that it replaces, and their arguments.

    :raises PassError: in its place.
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
        """Raise the `PassError`, if there is an error of tj's own."""
        if not isinstance(error, Exception) or isinstance(error, (*_OTHERS, *self.but)):
            return
        if not self.strict:
            raise PassError(self.name, error, source=source_of(error, self.locate)) from error


def warn_of(error: PassError) -> None:
    """Say that the program goes on without what failed, long after it was captured."""
    warnings.warn(TjWarning(f"tj: {error}"), stacklevel=3)


def source_of(error: Exception, locate: Locate) -> Source | None:
    """The user's line that was worked on: by the error, else by the innermost variables."""
    if isinstance(error, TjError) and error.source is not None:
        return error.source
    found = None
    for scope in _scopes(error.__traceback__):
        found = next(filter(None, map(locate, scope.values())), found)
    return found


def _scopes(traceback: TracebackType | None) -> Iterator[Mapping[str, Any]]:
    while traceback is not None:
        # Not this file's own: a look at a frame's variables keeps them, and one is the error.
        if traceback.tb_frame.f_code.co_filename != __file__:
            yield traceback.tb_frame.f_locals
        traceback = traceback.tb_next

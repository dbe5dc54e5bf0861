"""The one error hierarchy: every error says what went wrong, where, and what to do.

The names are re-exported by `tj_core`; everything tj raises on purpose is a `TjError`. What the
user's own program raises is passed through as it is, with a note that names the user's line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tj_core.source import Source

__all__ = [
    "CannotExpandError",
    "CaptureError",
    "ConfigError",
    "PackageError",
    "ParseError",
    "PassError",
    "PluginConflictError",
    "PluginError",
    "RuleConflictError",
    "RuleMissingError",
    "TagError",
    "TjError",
    "TjWarning",
    "TraceError",
    "VerificationError",
    "add_note",
    "close",
    "did_you_mean",
    "has_written",
    "how_to_disable",
    "mark_written",
    "notes",
]


class TjError(Exception):
    """Base of all errors raised by tj.

    ``message`` says what is wrong, ``source`` where in the user's code (None where there is no
    such place), ``hint`` what to do about it.
    """

    def __init__(self, message: str, *, source: Source | None = None, hint: str = "") -> None:
        parts = [message]
        if source is not None:
            parts.append(f"  at {source}")
        if hint:
            parts.append(f"  {hint}")
        super().__init__("\n".join(parts))
        self.message = message
        self.source = source
        self.hint = hint


class ConfigError(TjError):
    """A configuration value is unknown, of the wrong type, or contradicts another one."""


class PluginError(TjError):
    """A plugin that was asked for cannot be found, loaded or used, or broke its contract."""


class PluginConflictError(PluginError):
    """Two plugins claim one name."""


class RuleMissingError(TjError):
    """A table has no rule for a symbol; the message names symbol, table, plugins and remedy."""


class RuleConflictError(TjError):
    """Two rules of equal priority are registered for one key."""


class TagError(TjError):
    """A tag is unknown, sits on the wrong carrier, or conflicts with another one."""


class TraceError(TjError):
    """A trace was built or edited in a way its contract forbids."""


class VerificationError(TraceError):
    """The verifier found a trace that breaks an invariant of its stage."""


class ParseError(TraceError):
    """A text is not the printed form of a trace."""


class CannotExpandError(TjError):
    """The facts of a call are unknown before the call runs; a frontend may know some of them."""


class CaptureError(TjError):
    """A frontend could not turn the user's program into a trace."""


class PackageError(TjError):
    """A program cannot be packaged, a package cannot be used here, or a call is not one of its."""


class PassError(TjError):
    """A pass of tj's own failed; the frontend warns, and runs the program as PyTorch does.

    ``__cause__`` is the exception that the pass raised.
    """

    def __init__(self, name: str, cause: Exception, *, source: Source | None = None) -> None:
        said = cause.message if isinstance(cause, TjError) else str(cause)
        super().__init__(
            f"the pass {name!r} failed: {type(cause).__name__}: {said}",
            source=source,
            hint="it runs without tj; please report this (strict = true makes it an error)",
        )


class TjWarning(UserWarning):
    """Category of every warning tj emits, so that a filter can name it."""


def how_to_disable(plugin: str) -> str:
    """The hint of errors that a plugin has caused."""
    return f'to do without it: disable = ["{plugin}"] in [tool.tj], or TJ_DISABLE={plugin}'


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the name in ``known`` closest to ``name``, or ``""``."""
    found = close(name, known)
    return f" Did you mean {found!r}?" if found is not None else ""


def close(name: str, known: Iterable[str]) -> str | None:
    """The name in ``known`` closest to ``name``, if one is like it."""
    folded = {each.casefold(): each for each in sorted(set(known), reverse=True)}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def add_note(error: BaseException, note: str) -> None:
    """`BaseException.add_note`, also on Python 3.10, where tracebacks do not show it."""
    error.__notes__ = [*notes(error), note]  # type: ignore[attr-defined]


def mark_written(error: BaseException) -> None:
    """Mark ``error`` as raised after arguments were written that cannot be had back.

    The program must not run again from them.
    """
    error.__tj_written__ = True  # type: ignore[attr-defined]  # no class declares it


def has_written(error: BaseException) -> bool:
    """Test for an error that `mark_written` has marked."""
    return hasattr(error, "__tj_written__")


def notes(error: BaseException) -> list[str]:
    """The notes of ``error``, in order."""
    return list(getattr(error, "__notes__", ()))

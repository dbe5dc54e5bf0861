"""Notes on errors that a jitted program raises: the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_core.extend import Jitted, Source, TjError, notes
from tj_core.internal import add_note

from tj_torch.capture.sources import raising_source

__all__ = ["note_line", "with_notes"]


def note_line(jitted: Jitted, error: Exception, when: str, other: Source | None) -> None:
    """Add a note with the user's line, else ``other``, to ``error``, unless tj added one before."""
    if isinstance(error, TjError) or any(n.startswith("tj:") for n in notes(error)):
        return
    source = raising_source(error) or other
    if source is not None:
        add_note(error, f"tj: {when} {jitted.name}, at {source}")


def with_notes(jitted: Jitted, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with the user's line added as a note to the errors it raises."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note_line(jitted, error, "in", None)
            raise

    return run

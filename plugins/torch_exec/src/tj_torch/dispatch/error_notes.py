"""Notes on errors that a jitted program raises: the user's line, and which ranks wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_core.extend import Jitted, Source, TjError, notes
from tj_core.internal import add_note

from tj_torch.capture.sources import raising_source
from tj_torch.runtime.ranks import WAITING, said_by_ranks

__all__ = ["note_line", "with_notes"]


def note_line(jitted: Jitted, error: Exception, when: str, other: Source | None) -> None:
    """Add a note with the user's line, else ``other``, to ``error``, unless tj added one before."""
    if isinstance(error, TjError) or any(n.startswith("tj:") for n in notes(error)):
        return
    source = raising_source(error) or other
    if source is not None:
        add_note(error, f"tj: {when} {jitted.name}, at {source}")


def with_notes(jitted: Jitted, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which runs in eager, with notes added to the errors it raises.

    They have the user's line, and which ranks have compiled the program and wait for this one.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note_line(jitted, error, "in", None)
            if isinstance(error, RuntimeError):  # as errors of collectives are
                for text in said_by_ranks(WAITING).values():
                    add_note(error, f"{text}\n  {jitted.name} runs in eager on this rank")
            raise

    return run

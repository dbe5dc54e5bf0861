"""Fallbacks of jitted callables, such as those at graph breaks: record each, and warn once."""

from __future__ import annotations

import re
import warnings

from tj_core.extend import CaptureError, Fallback, Jitted, PassError, Source, TjWarning

from tj_torch.capture.sources import users_stacklevel
from tj_torch.runtime.ranks import IN_EAGER, say_to_ranks

__all__ = ["fall_back", "fall_back_from", "first_lines", "stand_aside", "warn"]


def fall_back(jitted: Jitted, reason: str, source: Source | None, *, silent: bool = False) -> None:
    """Record a fallback of ``jitted``; warn of it once, unless ``silent``.

    :raises CaptureError: instead, if ``jitted`` is to be one graph (``fullgraph``).
    """
    if jitted.fullgraph:
        said = reason.removesuffix("; it runs as it is")
        raise CaptureError(f"{jitted.name}: {said}", source=source, hint=_WHOLE)
    stand_aside(jitted, reason, source, silent=silent)


_WHOLE = "it is an error by fullgraph or strict; without these the program runs, whole or in parts"


def stand_aside(
    jitted: Jitted, reason: str, source: Source | None = None, *, silent: bool = False
) -> None:
    """Record a fallback and warn of it once, even if the program is to be one graph.

    For calls under a mode, such as vmap, under which ``torch.compile`` compiles nothing either.
    """
    fallback = Fallback(reason, source)
    if fallback in jitted.stats.fallbacks:
        return
    jitted.stats.fallbacks = (*jitted.stats.fallbacks, fallback)
    where = f"\n  at {source}" if source else ""
    # Ranks that have compiled it may wait for the word of this one.
    say_to_ranks(IN_EAGER, f"{jitted.name}: {reason}{where}")
    if not silent:
        warn(f"tj: {jitted.name}: {reason}{where}")


def fall_back_from(jitted: Jitted, error: CaptureError | PassError) -> None:
    """Record a fallback of ``jitted`` because of ``error``, and warn of it once.

    :raises CaptureError: see `fall_back`.
    """
    captured = isinstance(error, PassError)
    reason = error.message if captured else f"not captured: {error.message}"
    fall_back(jitted, f"{reason}; {error.hint}" if captured else reason, error.source)


def first_lines(reason: str, count: int = 3) -> str:
    """The first lines of Dynamo's ``reason`` as one line, with what to do instead.

    If the reason is an exception of the program, its message: functions of PyTorch that cannot be
    compiled raise one that names another function.
    """
    raised = _RAISED.search(reason)
    if reason.startswith("Observed exception") and raised is not None:
        return f"it raises {raised[1]} where Dynamo captures it"
    lines = [line.strip() for line in reason.splitlines()[:count] if line.strip()]
    for beginning, remedy in _REMEDIES.items():
        if reason.startswith(beginning):
            lines = [*(line for line in lines if not line.startswith("Hint:")), f"Hint: {remedy}"]
    return "; ".join(lines)


_RAISED = re.compile(r"Developer debug context: raised exception (.+)")

_REMEDIES = {
    "async_op=True for distributed collectives": (
        "torch.distributed._functional_collectives has functions that start a collective and wait "
        "for it where its result is read first; they are captured"
    ),
}
"""Remedies for graph breaks for which Dynamo has none, by the beginning of its reason."""


def warn(text: str) -> None:
    """Warn with ``text``, at the line of the user's that called tj."""
    warnings.warn(text, TjWarning, stacklevel=users_stacklevel())

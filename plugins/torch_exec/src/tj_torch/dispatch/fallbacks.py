"""Fallbacks of jitted callables, such as those at graph breaks: record each, and warn once."""

from __future__ import annotations

import warnings

from tj_core.extend import CaptureError, Fallback, Jitted, PassError, Source, TjWarning

from tj_torch.capture.sources import users_stacklevel

__all__ = ["fall_back", "fall_back_from", "first_lines", "warn"]


def fall_back(jitted: Jitted, reason: str, source: Source | None, *, silent: bool = False) -> None:
    """Record a fallback of ``jitted``; warn of it once, unless ``silent``."""
    fallback = Fallback(reason, source)
    if fallback in jitted.stats.fallbacks:
        return
    jitted.stats.fallbacks = (*jitted.stats.fallbacks, fallback)
    where = f"\n  at {source}" if source else ""
    if not silent:
        warn(f"tj: {jitted.name}: {reason}{where}")


def fall_back_from(jitted: Jitted, error: CaptureError | PassError) -> None:
    """Record a fallback of ``jitted`` because of ``error``, and warn of it once."""
    captured = isinstance(error, PassError)
    reason = error.message if captured else f"not captured: {error.message}"
    fall_back(jitted, f"{reason}; {error.hint}" if captured else reason, error.source)


def first_lines(reason: str, count: int = 3) -> str:
    """The first lines of ``reason`` as one line."""
    return "; ".join(line.strip() for line in reason.splitlines()[:count] if line.strip())


def warn(text: str) -> None:
    """Warn with ``text``, at the line of the user's that called tj."""
    warnings.warn(text, TjWarning, stacklevel=users_stacklevel())

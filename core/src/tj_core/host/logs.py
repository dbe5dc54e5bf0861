"""Log lines under the name ``tj``: one for each compilation, graph break and recompilation.

Records are made by the standard `logging`, in the loggers ``tj.compile``, ``tj.graph_breaks`` and
``tj.recompiles``, at level INFO. The config key ``logs`` (``TJ_LOGS``) prints those of some topics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tj_core.showing import one_line

if TYPE_CHECKING:
    from tj_core.compile.compilation import Compilation

__all__ = ["log_break", "log_compile", "log_late", "log_recompile", "print_logs"]

_COMPILE = logging.getLogger("tj.compile")
_BREAKS = logging.getLogger("tj.graph_breaks")
_RECOMPILES = logging.getLogger("tj.recompiles")


def print_logs(topics: Iterable[str]) -> None:
    """Print the lines of ``topics`` to stderr, or to the handlers that the program has set up.

    Other topics stay as they are: sessions only turn lines on.
    """
    names = [*topics]
    if not names:
        return
    top = logging.getLogger("tj")
    if not top.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        top.addHandler(handler)
    for name in names:
        (top if name == "all" else top.getChild(name)).setLevel(logging.INFO)


def log_compile(name: str, seconds: float, compilation: Compilation | None) -> None:
    """Log that a program of the function ``name`` was compiled in ``seconds``."""
    if _COMPILE.isEnabledFor(logging.INFO):
        facts = "nothing on tensors" if compilation is None else _facts(compilation)
        _COMPILE.info("%s: compiled in %.2f s: %s", name, seconds, facts)


def log_late(name: str, seconds: dict[str, float]) -> None:
    """Log that a program beside another, a backward for instance, was compiled at its first use."""
    part = next(iter(seconds), "").partition(":")[0]
    _COMPILE.info("%s: %s compiled in %.2f s", name, part, sum(seconds.values()))


def log_break(name: str, reason: object) -> None:
    """Log a graph break of the callable ``name``: its place and reason."""
    _BREAKS.info("%s: %s", name, one_line(reason))


def log_recompile(name: str, reason: str) -> None:
    """Log that the callable ``name`` was compiled again, and the reason: what has changed."""
    _RECOMPILES.info("%s: compiled again: %s", name, one_line(reason))


def _facts(compilation: Compilation) -> str:
    counts: dict[str, int] = {}
    for record in compilation.claims:
        if record.executor:
            counts[record.executor] = counts.get(record.executor, 0) + 1
    by = ", ".join(f"{name} {count}" for name, count in counts.items())
    c = compilation.counts
    regions = f", {len(compilation.regions)} regions ({c.compiled} compiled)"
    found = ", found on disk" if c.finished else ""
    calls = f"{sum(counts.values())} calls ({by})" if counts else "no calls"
    return calls + (regions if compilation.regions else "") + found

"""Pages about the programs behind a callable, which a plugin makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tj_core.errors import TjError
from tj_core.host.session import current_session
from tj_core.looking.programs import programs_of, states_of

if TYPE_CHECKING:
    import os

__all__ = ["PAGES", "Page", "report"]

PAGES = "pages"
"""The name of the rule table of pages; `report` calls its rule ``report``."""

Page = Callable[[Any, str], str]
"""The type of its rules: from a callable with programs, and a title, to an HTML page."""


def report(fn: Any, path: str | os.PathLike[str], *, title: str = "") -> Path:
    """Write an HTML page about the programs behind ``fn`` to the file ``path``; return its path.

    The page needs no network. It is made by tj-report.

    :raises TjError: if ``fn`` has no programs, or tj-report is not installed.
    """
    states = states_of(fn)
    if not programs_of(fn):
        raise TjError("there is nothing to report: no program has been compiled")
    own = states[0].session.tables.get(PAGES)
    table = own if own is not None else current_session().tables.get(PAGES)
    if table is None:
        raise TjError(
            "no plugin in use makes pages",
            hint="pip install tj-report, or enable the plugin `report`",
        )
    rule = next(iter(table))
    page: Page = rule.value
    file = Path(path)
    file.write_text(page(fn, title or states[0].name), "utf-8")
    return file

"""Hooks of tj-report. Jinja2 is imported when a page is made."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from tj_core.extend import RuleTable, hookimpl
from tj_core.internal import PAGES, Page

if TYPE_CHECKING:
    from tj_core.extend import CliCommand

TJ_PLUGIN_API = 1


@hookimpl
def tj_available() -> str | None:
    return None if importlib.util.find_spec("jinja2") else "jinja2 is not installed"


@hookimpl
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    table: RuleTable[Page] = RuleTable(PAGES, rule_type=object)
    table.set("report", _page)
    return (table,)


def _page(fn: Any, title: str) -> str:
    from tj_report.page import make_page  # not before a page is wanted: it loads Jinja2

    return make_page(fn, title)


@hookimpl
def tj_cli_commands() -> tuple[CliCommand, ...]:
    from tj_report.command import report_command

    return (report_command(),)

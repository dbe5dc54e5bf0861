"""One self-contained HTML page about the programs behind a callable."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup
from tj_core import programs, stats

from tj_report.data import counted, program_data

if TYPE_CHECKING:
    from tj_core.internal import CompiledProgram

__all__ = ["make_page"]

COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d",
)  # fmt: skip


def make_page(fn: Any, title: str) -> str:
    """The HTML page about the programs behind ``fn``."""
    found, counters = programs(fn), stats(fn)
    names = dict.fromkeys(
        record.executor for program in found for record in program.claims if record.executor
    )
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    breaks = dict.fromkeys(b for program in found for b in program.jitted.breaks)
    return _template().render(
        title=title,
        counters=counters.rows(),
        seconds=_bars(counters.seconds),
        compile_seconds=counters.compile_seconds,
        programs=[_entry(number, program) for number, program in enumerate(found)],
        breaks=[(str(b.source) if b.source else "", b.reason) for b in breaks],
        fallbacks=[(str(f.source) if f.source else "", f.reason) for f in counters.fallbacks],
        colours=colours,
        data=[_json(program_data(program)) for program in found],
        palette=_json(colours),
        # Files of ours, which would be no CSS and JavaScript any more if `<` and `&` were escaped.
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
    )


def _entry(number: int, program: CompiledProgram) -> dict[str, Any]:
    return {
        "number": number,
        "name": program.name,
        "kind": program.kind,
        "function": program.function,
        "calls": len(program.traces[-1].calls),
        "after": str(program.after).partition("; ")[0]
        if program.after and not program.part
        else "",
        "reason": "" if program.part else program.entry.reason,
        "guards": [] if program.part else [str(guard) for guard in program.guards],
        "counts": counted([record.executor for record in program.claims]),
        "main": not program.part,
    }


def _bars(seconds: dict[str, float]) -> list[tuple[str, float, float]]:
    """Passes, their seconds, and their share of the longest, the longest first."""
    longest = max(seconds.values(), default=0.0) or 1.0
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    # Less is 0.000 on the page.
    return [(name, value, 100 * value / longest) for name, value in ordered if value >= 0.0005]


def _json(value: Any) -> Markup:
    """JSON that can stand in a script element: no ``</`` ends it, no ``<!--`` begins a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


@cache
def _template() -> jinja2.Template:
    # Strict: Jinja leaves out a name that it does not know, and nobody would see that.
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_asset("page.html"))


@cache
def _asset(name: str) -> str:
    return files("tj_report").joinpath("assets").joinpath(name).read_text("utf-8")

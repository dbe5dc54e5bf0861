"""A jitted callable in a notebook: counters, programs and traces in one cell."""

from __future__ import annotations

import html
from typing import Any

from tj_core.looking.programs import own_states, programs_of
from tj_core.looking.views import stats
from tj_core.showing import folded_html

__all__ = ["callable_html"]

_MOST = 20
"""Most programs whose traces a cell contains."""


def callable_html(fn: Any) -> str:
    """The HTML of a jitted callable, or of its state: counters, programs, and their traces."""
    counted, found, states = stats(fn), programs_of(fn), own_states(fn)
    name = html.escape(states[0].name if states else "")
    head = (
        f"<b>{name}</b>, jitted: {counted.calls} calls, {counted.hits} hits, "
        f"{counted.entries} entries, {counted.compile_seconds:.2f} s compiling"
    )
    traces = (folded_html(f"program {p.name}", p._repr_html_()) for p in found[-_MOST:])
    counters = folded_html("counters", counted._repr_html_())
    return f"<div>{head}{found._repr_html_()}{counters}{''.join(traces)}</div>"

"""Timeline of what a program starts, such as collectives: when, and what is computed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from tj_report.memory import readable

if TYPE_CHECKING:
    from tj_core.internal import Overlap

__all__ = ["HEADER", "rows", "timeline_svg"]

HEADER = ["call", "operation", "group", "bytes", "started after", "waited before", "hidden by"]

WIDTH, LABELS, ROW, AXIS = 900, 300, 16, 24


def rows(overlaps: Sequence[Overlap]) -> list[list[str]]:
    """The table of ``overlaps``, in order of their starts; `HEADER` names its columns."""
    return [
        [
            found.call,
            found.started.operation,
            found.started.group,
            "" if found.started.size is None else readable(found.started.size),
            _calls(found.after),
            found.before or "(the end)",
            _calls(found.between) if found.hidden else "nothing: exposed",
        ]
        for found in overlaps
    ]


def _calls(count: int) -> str:
    return f"{count} call" + "s" * (count != 1)


def timeline_svg(overlaps: Sequence[Overlap]) -> str:
    """The plot of ``overlaps`` as inline SVG, a row each; empty if there are none.

    It goes over the calls that compute, up to the last wait. A bar goes from a start to its wait;
    what is waited for at once is a mark.
    """
    if not overlaps:
        return ""
    last = max(max(found.after + found.between for found in overlaps), 1)  # a divisor
    scale = (WIDTH - LABELS) / last
    height = len(overlaps) * ROW + AXIS
    exposed = sum(not found.hidden for found in overlaps)
    drawn = "".join(_row(i, found, scale) for i, found in enumerate(overlaps))
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH + 8} {height}" role="img" '
        f'aria-label="{len(overlaps)} collectives, {exposed} of them exposed">{drawn}'
        f'<line x1="{LABELS}" y1="{height - 18}" x2="{WIDTH}" y2="{height - 18}"/>'
        f'<text x="{LABELS}" y="{height - 4}">first call</text>'
        f'<text x="{WIDTH}" y="{height - 4}" text-anchor="end">after {_calls(last)}</text></svg>'
    )


def _row(place: int, found: Overlap, scale: float) -> str:
    # Three points at least: a bar of no width is not seen.
    left, width = LABELS + found.after * scale, max(found.between * scale, 3.0)
    left = min(left, WIDTH - width + 3)
    kind = "hidden" if found.hidden else "exposed"
    size = "" if found.started.size is None else f", {readable(found.started.size)}"
    label = escape(f"{found.started.operation}{size}, group {found.started.group}")
    title = escape(
        f"{found.call}: started after {_calls(found.after)}, waited before "
        f"{found.before or 'the end'}, {_calls(found.between)} between"
    )
    y = place * ROW
    return (
        f'<g class="{kind}"><title>{title}</title><text x="0" y="{y + 12}">{label}</text>'
        f'<rect x="{left:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"/></g>'
    )

"""Plain SVG: groups of bars, and timelines of spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["bars", "timelines"]

COLOURS = ("#b0b0b0", "#e8a33d", "#2f6fb3", "#5aa469")
_FONT = 'font-family="sans-serif" font-size="12"'


def bars(path: str, title: str, unit: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Write horizontal bars of each group, one for each of its names."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    most = max(value for group in groups.values() for value in group.values())
    left, width, height = 150, 560, 14
    lines, y = _head(title, names, left), 48
    for label, group in groups.items():
        lines.append(_text(10, y + 12, label))
        for name, value in group.items():
            length = width * value / most
            lines.append(_box(left, y, max(length, 0.5), height - 3, names.index(name)))
            lines.append(_text(left + length + 6, y + 10, f"{value:.1f} {unit}"))
            y += height
        y += 8
    _write(path, left + width + 90, y, lines)


def timelines(
    path: str,
    title: str,
    rows: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    legend: Sequence[str],
) -> None:
    """Write for each name lines of spans in seconds; the i-th line has the i-th colour."""
    end = max(stop for row in rows.values() for spans in row for _, stop in spans)
    left, width, height = 150, 700, 16
    lines, y = _head(title, legend, left), 48
    for label, row in rows.items():
        lines.append(_text(10, y + 12, label))
        for i, spans in enumerate(row):
            for begin, stop in _joined(spans, end / width / 4):
                x = left + width * begin / end
                lines.append(_box(x, y, max(width * (stop - begin) / end, 0.2), height - 3, i))
            y += height
        stop = max(stop for spans in row for _, stop in spans)
        lines.append(_text(left + width * stop / end + 6, y - 6, f"{stop * 1e3:.1f} ms"))
        y += 10
    _write(path, left + width + 80, y, lines)


def _head(title: str, legend: Sequence[str], left: int) -> list[str]:
    """The title and, in the line below, the colour of each name."""
    lines = [_text(10, 18, title)]
    for i, name in enumerate(legend):
        lines += [_box(left + 150 * i, 24, 10, 10, i), _text(left + 150 * i + 16, 34, name)]
    return lines


def _joined(spans: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """``spans`` with those that lie closer than can be seen as one."""
    found: list[tuple[float, float]] = []
    for begin, stop in spans:
        if found and begin - found[-1][1] < gap:
            found[-1] = found[-1][0], stop
        else:
            found.append((begin, stop))
    return found


def _box(x: float, y: float, width: float, height: float, colour: int) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}"'
    return f'<rect {place} fill="{COLOURS[colour]}"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT}>{text}</text>'


def _write(path: str, width: float, height: float, lines: Sequence[str]) -> None:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    Path(path).write_text("\n".join([head, ground, *lines, "</svg>"]) + "\n")

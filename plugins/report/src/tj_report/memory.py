"""Memory over a program: bytes of the values it has made and still needs, and their plot."""

from __future__ import annotations

from collections.abc import Sequence

from tj_core.extend import (
    DType,
    SymDim,
    TensorProxy,
    Trace,
    last_uses,
    storage_roots,
)

__all__ = ["memory_over", "memory_svg", "readable"]

WIDTH, HEIGHT, MARGIN = 900, 180, 56
MOST = 600
"""Most points of a plot; of more calls, each point is the largest of several."""


def memory_over(trace: Trace) -> list[int]:
    """Bytes after each call of values that calls have made and that are read later.

    Inputs do not count: the caller holds them. Views count with the memory they share. For sizes
    that are symbols, the sizes of the first call count.
    """
    made = storage_roots(trace.calls)
    sizes: dict[str, int] = {}
    inputs = {p.name for p in trace.inputs}
    freed = last_uses(trace.calls, trace.outputs, lambda name: made.get(name, name))
    held, found = 0, []
    for call, ended in zip(trace.calls, freed, strict=True):
        for p in call.flat_outs:
            root = made[p.name]
            if isinstance(p, TensorProxy) and root not in sizes and root not in inputs:
                sizes[root] = _bytes(p)
                held += sizes[root]
        found.append(held)
        held -= sum(sizes.get(name, 0) for name in ended)
    return found


def _bytes(p: TensorProxy) -> int:
    elements = 1
    for size in p.shape:
        elements *= (size.hint or 1) if isinstance(size, SymDim) else size
    dtype: DType = p.dtype
    return elements * max(dtype.bits, 8) // 8


def memory_svg(values: Sequence[int]) -> str:
    """The plot of `memory_over` as inline SVG; empty for a program without calls."""
    if not values:
        return ""
    points = _thinned(values)
    top = max(*points, 1)
    step = (WIDTH - MARGIN) / max(len(points) - 1, 1)
    corners = [
        f"{MARGIN + i * step:.1f},{HEIGHT - 20 - (HEIGHT - 40) * value / top:.1f}"
        for i, value in enumerate(points)
    ]
    base = HEIGHT - 20
    line, last = " ".join(corners), MARGIN + (len(points) - 1) * step
    peak = readable(max(values))
    return (
        f'<svg class="memory" viewBox="0 0 {WIDTH + 8} {HEIGHT}" role="img" '
        f'aria-label="memory over the program, {peak} at most">'
        f'<polygon points="{MARGIN},{base} {line} {last:.1f},{base}"/>'
        f'<polyline points="{line}"/>'
        f'<text x="0" y="24">{peak}</text><text x="0" y="{base}">0</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - 4}">first call</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">call {len(values)}</text></svg>'
    )


def _thinned(values: Sequence[int]) -> list[int]:
    size = -(-len(values) // MOST)
    return [max(values[i : i + size]) for i in range(0, len(values), size)]


def readable(count: float) -> str:
    """A number of bytes with a unit: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"

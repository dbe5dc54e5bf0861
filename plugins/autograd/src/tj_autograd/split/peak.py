"""An estimate of the memory that a forward and its backward need at most, from their traces.

Values take memory from the call that makes them to the last that reads them. A view takes none, and
keeps what it views alive. Inputs belong to the caller and do not count, nor does what operations
need inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tj_core.extend import BoundSymbol, Proxy

from tj_autograd.split.partition import byte_size

__all__ = ["peak_bytes"]


def peak_bytes(
    forward: Sequence[BoundSymbol],
    returned: Iterable[Proxy],
    backward: Sequence[BoundSymbol],
    gradients: Iterable[Proxy],
) -> int:
    """Bytes at the worst moment of ``forward``, then ``backward``.

    ``returned`` are the values that live until the backward begins: outputs, saved ones;
    ``gradients`` those it leaves behind.
    """
    sizes, roots = _storages((*forward, *backward))
    return max(
        _peak(forward, {roots.get(p.name, p.name) for p in returned}, sizes, roots, set()),
        _peak(
            backward,
            {roots.get(p.name, p.name) for p in gradients},
            sizes,
            roots,
            {roots.get(p.name, p.name) for p in returned},
        ),
    )


def _storages(calls: Iterable[BoundSymbol]) -> tuple[dict[str, int], dict[str, str]]:
    """The bytes of each value that owns memory, and for each value the owner of its memory."""
    sizes: dict[str, int] = {}
    roots: dict[str, str] = {}
    for call in calls:
        bases = {a.output: call.flat_args[a.index] for a in call.effects.aliases if a.kind == "arg"}
        for i, p in enumerate(call.flat_outs):
            base = bases.get(i)
            roots[p.name] = p.name if base is None else roots.get(base.name, base.name)
            if base is None:
                sizes[p.name] = byte_size(p)
    return sizes, roots


def _peak(
    calls: Sequence[BoundSymbol],
    last: set[str],
    sizes: dict[str, int],
    roots: dict[str, str],
    live: set[str],
) -> int:
    """The most bytes live at any call, ``last`` living to the end and ``live`` at the beginning."""
    ends: list[set[str]] = []
    seen = set(last)
    for call in reversed(calls):
        here = {roots.get(p.name, p.name) for p in (*call.flat_args, *call.flat_outs)}
        ends.append(here - seen)
        seen |= here
    ends.reverse()
    now = {name for name in live if name in seen}
    total = most = sum(sizes.get(name, 0) for name in now)
    for call, over in zip(calls, ends, strict=True):
        for p in call.flat_outs:
            root = roots[p.name]
            if root not in now:
                now.add(root)
                total += sizes.get(root, 0)
        most = max(most, total)
        for name in over & now:
            now.discard(name)
            total -= sizes.get(name, 0)
    return most

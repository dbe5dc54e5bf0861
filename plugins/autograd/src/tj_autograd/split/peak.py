"""An estimate of the memory that a forward and its backward need at most, from their traces.

Values take memory from the call that makes them to the last that reads them. A view takes none, and
keeps what it views alive. Inputs belong to the caller and do not count, nor does what operations
need inside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tj_core.extend import BoundSymbol, Proxy, last_uses, storage_roots, value_names

from tj_autograd.split.partition import byte_size

__all__ = ["peak_bytes"]


def peak_bytes(
    forward: Sequence[BoundSymbol],
    returned: Iterable[Proxy],
    backward: Sequence[BoundSymbol],
    gradients: Iterable[Proxy],
    inside: Collection[str] = (),
) -> int:
    """Bytes at the worst moment of ``forward``, then ``backward``.

    ``returned`` are the values that live until the backward begins: outputs, saved ones;
    ``gradients`` those it leaves behind. Values ``inside`` of fused kernels take no memory.
    """
    calls = (*forward, *backward)
    roots = storage_roots(calls)
    owners = (p for call in calls for p in call.flat_outs if roots[p.name] == p.name)
    sizes = {p.name: byte_size(p) for p in owners if p.name not in inside}
    returned, gradients = tuple(returned), tuple(gradients)
    return max(
        _peak(forward, returned, sizes, roots),
        _peak(backward, gradients, sizes, roots, before=returned),
    )


def _peak(
    calls: Sequence[BoundSymbol],
    last: tuple[Proxy, ...],
    sizes: Mapping[str, int],
    roots: Mapping[str, str],
    before: tuple[Proxy, ...] = (),
) -> int:
    """The most bytes live at any call.

    ``last`` are values that live to the end, ``before`` those that live at the beginning.
    """

    def owner(name: str) -> str:
        return roots.get(name, name)

    used = value_names((last, *((call.flat_args, call.flat_outs) for call in calls)))
    now = {owner(p.name) for p in before} & set(map(owner, used))
    total = most = sum(sizes.get(name, 0) for name in now)
    for call, over in zip(calls, last_uses(calls, last, owner), strict=True):
        for root in (owner(p.name) for p in call.flat_outs):
            if root not in now:
                now.add(root)
                total += sizes.get(root, 0)
        most = max(most, total)
        for name in now.intersection(over):
            now.discard(name)
            total -= sizes.get(name, 0)
    return most

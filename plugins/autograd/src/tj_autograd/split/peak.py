"""Estimate of the peak memory of a forward and its backward, from their traces.

A value takes memory from the call that makes it to its last use. A view takes none, and keeps its
base alive. Inputs belong to the caller and do not count, nor does scratch memory of operations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tj_core.extend import BoundSymbol, Proxy, last_uses, storage_roots, value_names
from tj_torch.extend import byte_size

__all__ = ["peak_bytes"]


def peak_bytes(
    forward: Sequence[BoundSymbol],
    returned: Iterable[Proxy],
    backward: Sequence[BoundSymbol],
    gradients: Iterable[Proxy],
    inside: Collection[str] = (),
) -> int:
    """Estimate the peak memory, in bytes, of ``forward`` followed by ``backward``.

    ``returned`` are the values that live until the backward begins: outputs and saved values.
    ``gradients`` are its results. Values ``inside`` of fused kernels take no memory.
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
    """Maximum over ``calls`` of the live bytes.

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

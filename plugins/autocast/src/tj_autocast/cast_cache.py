"""Autocast's cache: one cast of each leaf, until the outermost autocast region ends.

Eager keys the cache by tensor object: a write to a leaf does not change its cached cast. In a
functional program a written leaf is another value, so it is followed through the calls that write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import BoundSymbol, Constant, Proxy, TensorProxy, Trace
from tj_torch.extend import AUTOCAST

from tj_autocast.notes import CAST_CACHE, LEAF

__all__ = ["CastCache", "Key"]

Key = tuple[Any, str]
"""Key of a cached cast: the cache (the value of tag `CAST_CACHE`) and the leaf's name."""


LOW = ("torch.bfloat16", "torch.float16")
"""Data types of casts that autocast caches."""


@dataclass
class CastCache:
    """Casts cached so far; ``leaf`` maps a value, also after writes, to the input that it is."""

    casts: dict[Key, TensorProxy] = field(default_factory=dict)
    leaf: dict[str, str] = field(default_factory=dict)

    @classmethod
    def at_start(cls, trace: Trace) -> CastCache:
        """Make an empty cache whose leaves are inputs of ``trace``."""
        leaves = (p for p in trace.inputs if p.tags.get(LEAF.name, False) is not False)
        return cls(leaf={p.name: p.name for p in leaves})

    def follow(self, call: BoundSymbol) -> None:
        """Note results of ``call`` that are the same tensor object as an argument."""
        if call.symbol.qualname == "tj.with_value":
            self.same(call.flat_args[0], call.flat_outs[0])
        elif call.symbol.functional:
            written = dict(call.kwargs).get("mutated", ())
            for index, out in zip(written, call.flat_outs, strict=False):
                self.same(call.flat_args[index], out)
        for alias in call.effects.aliases:
            if alias.identical and alias.index is not None:
                values = call.flat_args if alias.kind == "arg" else call.flat_outs
                self.same(values[alias.index], call.flat_outs[alias.output])

    def same(self, p: Proxy, other: Proxy) -> None:
        """Note that ``other`` is the same tensor object as ``p``."""
        if p.name in self.leaf:
            self.leaf[other.name] = self.leaf[p.name]

    def key(self, call: BoundSymbol, p: Proxy, dtype: Constant) -> Key | None:
        """Key of a cast of ``p`` to ``dtype`` in ``call``; None if it is not cached.

        ``call`` is under autocast, or in the body of a call that is.
        """
        cache, leaf = call.tags.get(CAST_CACHE.name), self.leaf.get(p.name)
        if cache is None or leaf is None or call.context.get("inference"):
            return None
        # As `cached_cast` in PyTorch's `autocast_mode.cpp`: it keeps casts from float32 to the
        # region's type alone.
        if not isinstance(p, TensorProxy) or p.dtype.name != "float32":
            return None
        low = call.context.get(AUTOCAST + p.device.type)
        # Calls of a body were recorded below autocast: its type is not in their context.
        lowered = (f"torch.{low}",) if low else LOW
        return (cache, leaf) if dtype.text in lowered else None

"""What captures note of autocast: which calls share casts, and which inputs these are kept of."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import BoundSymbol, CaptureError, TensorProxy, Trace, requires_grad

from tj_torch.ops.cast_cache import CAST_CACHE, LEAF, TABLE, CastCache, is_leaf, may_be_kept
from tj_torch.ops.contexts import ContextTracker, is_on

__all__ = ["Casts", "leaf_check"]


@dataclass
class Casts:
    """What is noted of one program, if autocast is ``entered`` in it, or around it.

    It is ``wanted`` by a plugin. ``leaves`` are the inputs that casts are kept of: without a plugin
    they may not be written. ``uses`` says of those used, in each stretch that shares casts, whether
    it is not known what a call casts.
    """

    entered: bool
    wanted: bool
    leaves: set[str] = field(default_factory=set)
    uses: dict[tuple[int, str], bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: torch.fx.GraphModule, context: ContextTracker, tables: Container[str]
    ) -> Casts:
        """What is to be noted of ``graph``, at whose beginning ``context`` holds."""
        entered = context.cache.depth > 0 or _enters_autocast(graph)
        return cls(entered, entered and TABLE in tables)

    def input(self, p: Any, value: object) -> Any:
        """The input ``p``, which is ``value``, with what autocast sees in it."""
        if not self.entered or not isinstance(p, TensorProxy) or not may_be_kept(p):
            return p
        assert isinstance(value, torch.Tensor)
        leaf = is_leaf(value)
        if leaf:
            self.leaves.add(p.name)
        if not self.wanted:
            return p
        known = leaf and isinstance(value, torch.nn.Parameter)  # their types are guarded
        return p.replace(tags=p.tags.add(LEAF.name, None if known else leaf))

    def call(self, call: BoundSymbol, cache: CastCache) -> BoundSymbol:
        """``call`` with the number of what it shares casts by.

        :raises CaptureError: if it writes to what a cast may be kept of, and nobody heeds that.
        """
        if not self.entered or cache.key is None:
            return call
        if self.wanted:
            if not is_on(call.context):
                return call
            self.note_uses(call, cache.key)
            return call.replace(tags=call.tags.add(CAST_CACHE.name, cache.key))
        if any(call.flat_args[i].name in self.leaves for i in call.effects.mutates):
            raise CaptureError(
                f"{call.symbol} writes to a tensor of which autocast may keep a cast",
                source=call.source,
            )
        return call

    def note_uses(self, call: BoundSymbol, key: int) -> None:
        """Note which leaves ``call`` uses.

        :raises CaptureError: if it may share a cast with others, and nobody knows what it casts.
        """
        differentiated = any(map(requires_grad, call.flat_outs))
        unknown = call.body is None and not call.regions and differentiated
        for name in self.leaves.intersection(p.name for p in call.flat_args):
            before = self.uses.get((key, name))
            if before is not None and (unknown or before):
                raise CaptureError(
                    f"{call.symbol} may share casts with other calls, of which not all are known",
                    source=call.source,
                )
            self.uses[key, name] = unknown or bool(before)


def _enters_autocast(graph: torch.fx.GraphModule) -> bool:
    return any(
        "autocast" in getattr(node.target, "__name__", str(node.target))
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    )


def leaf_check(trace: Trace, held: int = 0) -> Callable[[Sequence[Any]], bool] | None:
    """Whether inputs of ``trace`` are leaves as it says; None if it does not depend on that.

    The last ones, as many as are ``held``, are no arguments of a call.
    """
    given = trace.inputs[: len(trace.inputs) - held]
    leaves = [(i, p.tags.get(LEAF.name)) for i, p in enumerate(given)]
    places = [(i, leaf) for i, leaf in leaves if leaf is not None]
    if not places:
        return None
    return lambda values: all(is_leaf(values[i]) is leaf for i, leaf in places)

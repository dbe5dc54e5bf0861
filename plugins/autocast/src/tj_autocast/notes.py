"""Notes that captures make for the lowering of autocast.

Eager casts a leaf once, until the outermost region ends. Calls under autocast carry the tag
``CAST_CACHE``, whose value is the number of the stretch of the program in which they share casts;
inputs that a cast may be kept of carry ``LEAF``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CaptureError,
    RuleTable,
    Tag,
    TensorProxy,
    Trace,
    requires_grad,
)
from tj_torch.extend import is_on
from tj_torch.internal import AUTOCAST_NOTES, AutocastNotes, is_leaf

__all__ = ["CAST_CACHE", "LEAF", "LeafNotes", "leaf_check", "rules"]

CAST_CACHE = Tag(
    "CAST_CACHE",
    "autocast keeps casts for the calls with the same number",
    carriers=frozenset({"call"}),
)
LEAF = Tag(
    "LEAF",
    "autocast may keep a cast of the input, a leaf of autograd; True and False are what it was in "
    "the captured call, where it may be another tensor in the next",
    carriers=frozenset({"proxy"}),
    to_replacement=False,
)


@dataclass
class LeafNotes:
    """Notes on one program.

    ``leaves`` are the inputs that casts are kept of. ``uses`` says of each stretch that shares
    casts, and each leaf used in it, whether a call casts that in an unknown way.
    """

    leaves: set[str] = field(default_factory=set)
    uses: dict[tuple[int, str], bool] = field(default_factory=dict)

    def input(self, p: TensorProxy, value: torch.Tensor) -> TensorProxy:
        """Tag ``p`` with `LEAF`."""
        leaf = is_leaf(value)
        if leaf:
            self.leaves.add(p.name)
        known = leaf and isinstance(value, torch.nn.Parameter)  # their types are guarded
        return p.replace(tags=p.tags.add(LEAF.name, None if known else leaf))

    def call(self, call: BoundSymbol, key: int) -> BoundSymbol:
        """Tag ``call``, if it is under autocast, with `CAST_CACHE`.

        :raises CaptureError: if it may share a cast with others in an unknown way.
        """
        if not is_on(call.context):
            return call
        self.note_uses(call, key)
        return call.replace(tags=call.tags.add(CAST_CACHE.name, key))

    def note_uses(self, call: BoundSymbol, key: int) -> None:
        """Note the leaves that ``call`` uses.

        :raises CaptureError: if it may share a cast with others in an unknown way.
        """
        differentiated = any(map(requires_grad, call.flat_outs))
        # Without a body nobody sees what the call casts: eager would give the next call its cast.
        unknown = call.body is None and not call.subprograms and differentiated
        for name in self.leaves.intersection(p.name for p in call.flat_args):
            before = self.uses.get((key, name))
            if before is not None and (unknown or before):
                raise CaptureError(
                    f"{call.symbol} may share casts with other calls, of which not all are known",
                    source=call.source,
                )
            self.uses[key, name] = unknown or bool(before)


def leaf_check(trace: Trace, held: int) -> Callable[[Sequence[Any]], bool] | None:
    """Check that inputs of ``trace`` are leaves, or none, as noted; None if it depends on no input.

    The last ones, as many as are ``held``, are no arguments of a call.
    """
    given = trace.inputs[: len(trace.inputs) - held]
    leaves = [(i, p.tags.get(LEAF.name)) for i, p in enumerate(given)]
    places = [(i, leaf) for i, leaf in leaves if leaf is not None]
    if not places:
        return None
    return lambda values: all(is_leaf(values[i]) is leaf for i, leaf in places)


def rules() -> RuleTable[AutocastNotes]:
    """Register `LeafNotes` under ``torch.autocast``."""
    table: RuleTable[AutocastNotes] = RuleTable(AUTOCAST_NOTES)
    table.set("torch.autocast", AutocastNotes(LeafNotes, leaf_check))
    return table

"""Notes on autocast in captured programs, for the plugin that makes casts explicit.

Rule table ``autocast_notes`` has that plugin's `AutocastNotes`, under ``torch.autocast``. Without
it, calls stay under autocast, and a program that writes to a tensor of which autocast may keep a
cast is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from tj_core.extend import BoundSymbol, CaptureError, RuleTable, Symbol, TensorProxy, Trace

from tj_torch.ops.context.cast_cache import CastCache, is_leaf, may_be_kept
from tj_torch.ops.context.entering import AUTOCAST

if TYPE_CHECKING:
    from tj_torch.ops.context.tracker import ContextTracker

__all__ = ["NOTES", "AutocastNotes", "Casts", "Notes", "check_of", "rules"]

NOTES = "autocast_notes"
"""The table's name."""

_SYMBOL = Symbol("torch", "autocast")

Check = Callable[[Sequence[Any]], bool]
"""Check of the values of a program's inputs in a call: False if the program is not for them."""


class Notes(Protocol):
    """Notes on one program, in which autocast is on somewhere, while it is captured."""

    def input(self, p: TensorProxy, value: torch.Tensor) -> TensorProxy:
        """The input ``p`` with a note; autocast may keep a cast of ``value`` if it is a leaf."""

    def call(self, call: BoundSymbol, key: int) -> BoundSymbol:
        """``call`` with a note; calls with one ``key`` share the casts that autocast keeps.

        :raises CaptureError: if the program has to run as it is.
        """


@dataclass(frozen=True, slots=True)
class AutocastNotes:
    """A plugin's record for notes on autocast.

    ``begin`` starts notes on one program. ``check`` makes the `Check` of an acquired program with
    such notes, or None if it is right for all values; its second argument is the number of inputs,
    the last ones, that are no arguments of a call.
    """

    begin: Callable[[], Notes]
    check: Callable[[Trace, int], Check | None]


def rules() -> RuleTable[AutocastNotes]:
    """The table, without a rule."""
    return RuleTable(NOTES, rule_type=AutocastNotes)


def _registered(tables: Mapping[str, RuleTable[Any]]) -> AutocastNotes:
    """The record of a plugin, else of tj-torch's own."""
    rule = tables[NOTES].get(_SYMBOL)
    return AutocastNotes(_Unheeded, lambda trace, held: None) if rule is None else rule.value


def check_of(tables: Mapping[str, RuleTable[Any]], trace: Trace, held: int = 0) -> Check | None:
    """`AutocastNotes.check` of the acquired ``trace``, by the record in ``tables``."""
    return _registered(tables).check(trace, held)


@dataclass
class _Unheeded:
    """Notes where no plugin heeds what autocast keeps: ``leaves`` may not be written."""

    leaves: set[str] = field(default_factory=set)

    def input(self, p: TensorProxy, value: torch.Tensor) -> TensorProxy:
        """``p``, which may not be written if it is a leaf."""
        if is_leaf(value):
            self.leaves.add(p.name)
        return p

    def call(self, call: BoundSymbol, key: int) -> BoundSymbol:
        """``call``, if it writes to none of the leaves.

        :raises CaptureError: if it does.
        """
        if any(call.flat_args[i].name in self.leaves for i in call.effects.mutates):
            raise CaptureError(
                f"{call.symbol} writes to a tensor of which autocast may keep a cast",
                source=call.source,
            )
        return call


@dataclass
class Casts:
    """Notes on one program, if autocast is on somewhere in it, or around it; else None."""

    notes: Notes | None
    leaves: set[str] = field(default_factory=set)
    types: dict[tuple[int, str], tuple[tuple[str, Any], ...]] = field(default_factory=dict)
    """Autocast's data types where a leaf is first used, by key of the cache and name."""

    @classmethod
    def of(
        cls,
        graph: torch.fx.GraphModule,
        context: ContextTracker,
        tables: Mapping[str, RuleTable[Any]],
    ) -> Casts:
        """Begin notes on ``graph``, at whose beginning ``context`` holds."""
        # Most programs have no autocast, and notes cost time for each call.
        entered = context.cache.depth > 0 or _enters_autocast(graph)
        return cls(_registered(tables).begin() if entered else None)

    def input(self, p: Any, value: object) -> Any:
        """The input ``p``, which is ``value``, with its note."""
        if self.notes is None or not isinstance(p, TensorProxy) or not may_be_kept(p):
            return p
        assert isinstance(value, torch.Tensor)
        if is_leaf(value):
            self.leaves.add(p.name)
        return self.notes.input(p, value)

    def call(self, call: BoundSymbol, cache: CastCache) -> BoundSymbol:
        """``call`` with its note, where autocast keeps casts in ``cache``.

        :raises CaptureError: if the program has to run as it is.
        """
        if self.notes is None or cache.key is None:
            return call
        self._check_types(call, cache.key)
        return self.notes.call(call, cache.key)

    def _check_types(self, call: BoundSymbol, key: int) -> None:
        """Refuse a leaf of which autocast may keep a cast to another data type than it is now for.

        Eager takes the kept cast; what Python read in the capture is without it (`cast_anew`).
        """
        types = tuple((k, v) for k, v in call.context.items if k.startswith(AUTOCAST) and v)
        for p in call.flat_args if types else ():
            if p.name in self.leaves and self.types.setdefault((key, p.name), types) != types:
                raise CaptureError(
                    f"{call.symbol} gets {p.name}, of which autocast may keep a cast to another "
                    "data type",
                    source=call.source,
                )


def _enters_autocast(graph: torch.fx.GraphModule) -> bool:
    return any(
        "autocast" in getattr(node.target, "__name__", str(node.target))
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    )

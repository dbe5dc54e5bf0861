"""Operators on tensor subclasses, noted beside the plain ones that they run.

A subclass's own ``__torch_dispatch__`` comes before functionalization, and what it calls goes down
to the recorder. So a recording has two levels: operators on subclasses, and plain ones, inside of
those or beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from tj_core.extend import NO_TAGS, Proxy, TensorProxy, leaves, live_items, map_tree
from tj_torch.extend import is_wrapper, tensor_proxy
from tj_torch.internal import (
    OpFacts,
    Recorded,
    Recorder,
    Ref,
    Role,
    TorchDispatchMode,
    dense_tensors,
    functionalized_again,
    unwrapped,
)

__all__ = [
    "Event",
    "Levels",
    "Value",
    "Whole",
    "Wrapped",
    "live_events",
    "refs_in",
    "value",
]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A tensor of a subclass: its metadata, without a name, and the plain values it consists of."""

    proxy: TensorProxy
    parts: tuple[Ref, ...]


Value: TypeAlias = Ref | Wrapped


def value(p: Proxy, parts: tuple[Ref, ...]) -> Value:
    """The value of a tensor like ``p`` with ``parts``: a reference, or a `Wrapped`."""
    if not isinstance(p, TensorProxy) or p.subclass is None:
        return parts[0]
    return Wrapped(p.replace(name="", requires_grad=False, tags=NO_TAGS), parts)


def refs_in(tree: Any) -> Iterator[Ref]:
    """Yield the references to plain values in ``tree``, those in tensors of subclasses too."""
    for leaf in leaves(tree):
        if isinstance(leaf, Wrapped):
            yield from leaf.parts
        elif isinstance(leaf, Ref):
            yield leaf


@dataclass(frozen=True, slots=True)
class Whole:
    """An operator on subclasses: arguments and outputs are trees of values.

    ``calls`` are the plain operators that it ran.
    """

    facts: OpFacts
    args: Any
    kwargs: Any
    outputs: Any
    grad: bool
    calls: tuple[Recorded, ...]


Event: TypeAlias = Whole | Recorded


@dataclass(eq=False)
class Levels(TorchDispatchMode):
    """Mode above functionalization that notes operators on subclasses.

    ``recorder`` is what records the plain ones. Of those on subclasses inside of subclasses only
    the outer ones are noted.
    """

    recorder: Recorder
    noted: list[tuple[int, int, Whole]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = False

    def events(self, calls: Sequence[Recorded], start: int) -> list[Event]:
        """Replace in ``calls``, which begin at ``start``, each operator's calls by the operator."""
        stop, found, at = start + len(calls), list[Event](), 0
        for first, last, whole in self.noted:
            if start <= first and last <= stop and first < last:
                found += [*calls[at : first - start], whole]
                at = last - start
        return [*found, *calls[at:]]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note ``func`` if it is on subclasses, else functionalize it."""
        # One of the two methods by which PyTorch knows a wrapper subclass.
        if not any(hasattr(t, "__tensor_flatten__") for t in types):
            with functionalized_again():
                return func(*args, **(kwargs or {}))
        if self._inside:  # of this operator, or of one on what it holds
            # PyTorch asks the class's own `__torch_dispatch__` then.
            return NotImplemented
        return self._noted(func, args, kwargs or {})

    def _noted(self, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self.recorder
        given, first = self._values((tuple(args), dict(kwargs))), len(recorder.calls)
        self._inside = True
        try:
            # PyTorch takes a mode off while its own `__torch_dispatch__` runs.
            with self:
                result = func(*args, **kwargs)
        finally:
            self._inside = False
        facts, last = recorder.table[func], len(recorder.calls)
        # What writes stands in the body as the plain operators that it runs.
        if facts.role is not Role.QUERY and not func._schema.is_mutable:
            calls, made = tuple(recorder.calls[first:last]), self._values(result)
            whole = Whole(facts, given[0], given[1], made, torch.is_grad_enabled(), calls)
            self.noted.append((first, last, whole))
        return result

    def _values(self, tree: Any) -> Any:
        return map_tree(self._value, tree, torch.Tensor)

    def _value(self, tensor: torch.Tensor) -> Value:
        refs = tuple(self.recorder.ref(unwrapped(t)) for t in dense_tensors(tensor))
        return value(tensor_proxy("", tensor), refs) if is_wrapper(tensor) else refs[0]


def live_events(
    events: Iterable[Event], wanted: Iterable[Ref], *, keep_draws: bool = True
) -> list[Event]:
    """Live events for ``wanted`` values, and those that are never dead, in order.

    Without ``keep_draws``, those that draw random numbers may be dead.
    """

    def stays(call: Recorded) -> bool:
        return (call.draws and keep_draws) or call.facts.kept

    def read(event: Event, live: set[Ref]) -> Iterable[Ref] | None:
        calls = event.calls if isinstance(event, Whole) else (event,)
        if any(map(stays, calls)) or not live.isdisjoint(refs_in(event.outputs)):
            # What it runs may read what it is not given: a tensor that its class keeps.
            return refs_in([(c.args, c.kwargs) for c in (event, *calls)])
        return None

    return live_items(list(events), set(wanted), read)

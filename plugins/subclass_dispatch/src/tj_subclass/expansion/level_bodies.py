"""Bodies of recordings on two levels: operators on subclasses, each with a plain body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tj_core.extend import (
    Alias,
    Body,
    BoundSymbol,
    Constant,
    Context,
    Effects,
    Proxy,
    TensorProxy,
    formal_input,
    leaves,
    map_tree,
)
from tj_torch.extend import storage_id
from tj_torch.internal import BodyBuilder, CannotExpand, Ref

from tj_subclass.expansion.flattening import flatten_call, symbols_of_layout, unflatten_call
from tj_subclass.expansion.levels import Event, Value, Whole, Wrapped, live_events, refs_in

__all__ = ["LevelBuilder"]


@dataclass
class LevelBuilder(BodyBuilder):
    """Builder of bodies whose values may be of subclasses.

    It adds a ``tj.flatten`` where a call reads a part of a tensor of a subclass, and a
    ``tj.unflatten`` where one reads such a tensor that no call made.
    """

    wholes: dict[Wrapped, TensorProxy] = field(default_factory=dict)

    def of_events(
        self, inputs: Sequence[tuple[Any, Proxy]], outputs: Any, events: Sequence[Event]
    ) -> Body:
        """Build the body of ``events``, whose outputs are a tree of values."""
        for given, proxy in inputs:
            if isinstance(given, Ref | Wrapped):  # a number is known by its text
                known: dict[Any, Any] = self.wholes if isinstance(given, Wrapped) else self.names
                known.setdefault(given, proxy)
        if self.symbols:
            self.note_given(inputs, refs_in([given for given, _ in inputs]))
        off = self._without_autocast()
        for event in live_events(events, refs_in(outputs)):
            if isinstance(event, Whole):
                self.whole(event, off)
            else:
                made = self._call(event, off)  # behind the calls that take its arguments apart
                self.numbers.calls.append(made)
        result = map_tree(self._leaf, outputs)
        return Body(tuple(p for _, p in inputs), tuple(self.numbers.calls), result)

    def value(self, ref: Ref) -> Proxy | Constant:
        """The proxy or constant of a plain value; flattens the tensor that holds it, if need be."""
        if ref not in self.names:
            holder = next((w for w in self.wholes if ref in w.parts), None)
            if holder is not None:
                call = flatten_call(self.wholes[holder], self._fresh)
                self.numbers.calls.append(call)
                for part, out in zip(holder.parts, call.flat_outs, strict=True):
                    self.names.setdefault(part, out)
            elif ref.index not in self.recorder.constants:
                raise CannotExpand("a tensor subclass keeps a tensor that the call is not given")
        return super().value(ref)

    def _leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, Wrapped):
            return super()._leaf(leaf)
        if leaf not in self.wholes:
            parts = [self.value(ref) for ref in leaf.parts]
            sizes = [self.numbers.compute(n.name) for n in symbols_of_layout(leaf.proxy)]
            self.numbers.calls.append(unflatten_call(self._named(leaf), parts, sizes))
        return self.wholes[leaf]

    def _named(self, made: Wrapped) -> TensorProxy:
        proxy = self.wholes[made] = made.proxy.replace(name=self._fresh())
        return proxy

    def _define(self, leaf: Any) -> Any:
        return self._named(leaf) if isinstance(leaf, Wrapped) else super()._define(leaf)

    def whole(self, event: Whole, context: Context) -> None:
        """Add the call of an operator on subclasses, with its body."""
        made = _values(event.outputs)
        if all(v in self.wholes or v in self.names for v in made):
            return  # it returns what it is given
        args, kwargs = map_tree(self._leaf, (event.args, event.kwargs))
        outputs = map_tree(self._define, event.outputs)
        if event.grad != self.grad:
            context = context.with_("grad", event.grad)
        pairs = tuple(kwargs.items())
        call = BoundSymbol(event.facts.symbol, args, pairs, outputs, context=context)
        given = self.formals(event, call)
        inner = LevelBuilder(self.recorder, (), event.grad, self.context, self.symbols)
        body = inner.of_events([given[i] for i in sorted(given)], event.outputs, event.calls)
        ordered = dict.fromkeys(r for c in body.calls for r in c.effects.ordered)
        effects = Effects(aliases=self.shared(event, given), ordered=tuple(ordered))
        self.numbers.calls.append(replace(call, body=body, effects=effects))

    def formals(self, event: Whole, call: BoundSymbol) -> dict[int, tuple[Any, Proxy]]:
        """Arguments of ``call`` by flat index: the value, and the proxy under its formal name."""
        at: dict[str, int] = {}
        for i, p in enumerate(call.flat_args):
            at.setdefault(p.name, i)
        found: dict[int, tuple[Any, Proxy]] = {}
        for given in leaves((event.args, event.kwargs)):
            proxy = self._leaf(given)
            if isinstance(proxy, Proxy):
                i = at[proxy.name]
                found[i] = given, proxy.replace(name=formal_input(i))
        return found

    def shared(self, event: Whole, given: dict[int, tuple[Any, Proxy]]) -> tuple[Alias, ...]:
        """Aliases of results with arguments, by the memory that both hold."""
        first: dict[int, int] = {}
        # The last first: of arguments in one memory, the first one is noted at the end.
        for i in sorted(given, reverse=True):
            first |= dict.fromkeys(self.storages(given[i][0]), i)
        found = []
        for j, made in enumerate(_values(event.outputs)):
            indices = [first[s] for s in self.storages(made) if s in first]
            found += [Alias(j, "arg", min(indices))] if indices else []
        return tuple(found)

    def storages(self, given: Value) -> set[int]:
        """Storages of the parts of a value."""
        values = (self.recorder.values[r.index] for r in refs_in([given]))
        return {storage_id(v) for v in values if isinstance(v, torch.Tensor)}


def _values(tree: Any) -> list[Any]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Ref | Wrapped)]

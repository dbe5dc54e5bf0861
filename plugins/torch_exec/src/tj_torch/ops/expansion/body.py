"""Build a `Body` from a recording: remove dead calls, name values, add metadata and aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import (
    PLAIN_CONTEXT,
    Alias,
    Body,
    BoundSymbol,
    Constant,
    Context,
    Effects,
    NumberProxy,
    Proxy,
    Symbol,
    formal_value,
    leaves,
    live_items,
    map_tree,
    size_symbols,
)
from tj_core.internal import NO_EFFECTS

from tj_torch.ops.context.entering import AUTOCAST
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.recorder import Recorded, Recorder, Ref
from tj_torch.ops.expansion.size_calls import SizeCalls
from tj_torch.ops.sizes.shape_env import is_symbolic, number_text
from tj_torch.ops.values.constants import tensor_constant
from tj_torch.ops.values.convert import device_to_core, to_core, value_proxy
from tj_torch.torch_private import ops as private

__all__ = ["BodyBuilder", "alias_facts", "live_calls", "placed_tensors", "references"]


def live_calls(
    calls: Sequence[Recorded],
    wanted: Iterable[Ref],
    reads: Callable[[Any], Iterable[Ref]],
    *,
    keep_draws: bool = True,
) -> list[Recorded]:
    """Calls that ``wanted`` values depend on, and those that are never dead, in order.

    ``reads`` maps a tree of arguments to the values it reads. Without ``keep_draws``, calls that
    draw random numbers are dead if their results are unused.
    """

    def read(call: Recorded, live: set[Ref]) -> Iterable[Ref] | None:
        stays = (call.draws and keep_draws) or call.facts.kept
        if stays or not live.isdisjoint(references(call.outputs)):
            return reads((call.args, call.kwargs))
        return None

    return live_items(calls, set(wanted), read)


def references(tree: Any) -> Iterator[Ref]:
    """References among the leaves of ``tree``, in order."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, Ref))


def placed_tensors(values: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
    """The tensors among ``values``, each with its position."""
    return [(i, v) for i, v in enumerate(values) if isinstance(v, torch.Tensor)]


def alias_facts(outputs: Sequence[Any], arguments: Mapping[int, torch.Tensor]) -> tuple[Alias, ...]:
    """Aliases of ``outputs``: shared storage or identity with ``arguments`` (by index) or outputs.

    Any other view is a view of an internal value. Outputs that are no tensors only take up an
    index.
    """
    # Reversed, so that the first of several arguments that are one object is the one named.
    objects = {id(t): ("arg", i) for i, t in reversed(list(arguments.items()))}
    storages = {private.storage_id(t): ("arg", i) for i, t in reversed(list(arguments.items()))}
    facts = []
    for j, out in enumerate(outputs):
        if not isinstance(out, torch.Tensor):
            continue
        storage = private.storage_id(out)
        same = objects.setdefault(id(out), ("out", j))
        shared = storages.setdefault(storage, ("out", j))
        if same != ("out", j):
            facts.append(Alias(j, *same, identical=True))  # type: ignore[arg-type]
        elif shared != ("out", j):
            facts.append(Alias(j, *shared))  # type: ignore[arg-type]
        elif out._is_view():
            facts.append(Alias(j, "internal"))
    return tuple(facts)


@dataclass
class BodyBuilder:
    """Builder of one call's body from its recording.

    ``inputs`` pairs the references of the call's arguments with their formal proxies; ``grad`` and
    ``context`` are the call's, ``symbols`` sympy symbols by name, ``checks`` messages of the
    call's assertions by condition; ``names`` has the proxy or constant of each reference.
    """

    recorder: Recorder
    inputs: Sequence[tuple[Ref, Proxy]]
    grad: bool
    context: Context
    symbols: Mapping[str, Any] = field(default_factory=dict)
    checks: Mapping[str, str] = field(default_factory=dict)
    names: dict[Ref, Proxy | Constant] = field(default_factory=dict)
    defined: int = 0

    def __post_init__(self) -> None:
        self.numbers = SizeCalls(self.symbols, self.value, self._fresh)

    def build(
        self,
        outputs: Any,
        updates: Iterable[tuple[int, Ref]] = (),
        calls: Sequence[Recorded] | None = None,
    ) -> Body:
        """Build the body; ``outputs`` is a tree of references, symbolic numbers and constants.

        ``updates`` are new values of arguments, by index. ``calls`` are the recorded calls to
        choose from; all, if not given.
        """
        recorded = self.recorder.calls if calls is None else calls
        updates = tuple(updates)
        self.names.update(self.inputs)
        self.note_numbers(recorded)
        needed = [*self.reads(outputs), *(ref for _, ref in updates)]
        needed += [ref for text in self.checks for ref in self.numbers.needs(text)]
        live = live_calls(recorded, needed, self.reads)
        self.copy_returned(outputs)
        off = self._without_autocast()
        for call in live:
            made = self._call(call, off)  # adds the calls that compute its sizes first
            self.numbers.calls.append(made)
        for text, message in self.checks.items():
            self.numbers.calls.append(_check(self.numbers.compute(text), message))
        result = map_tree(self._leaf, outputs)
        return Body(
            tuple(p for _, p in self.inputs),
            tuple(self.numbers.calls),
            result,
            tuple((i, self.value(ref)) for i, ref in updates),
        )

    def value(self, ref: Ref) -> Proxy | Constant:
        """Proxy or constant for ``ref``."""
        found = self.names.get(ref)
        if found is None:
            found = self.names[ref] = tensor_constant(
                self.recorder.constants[ref.index], self.recorder.table.constants
            )
        return found

    def copy_returned(self, outputs: Any) -> None:
        """Copy returned constants, and bases of returned views: eager makes new tensors."""
        values = self.recorder.values
        returned = {private.storage_id(values[r.index]) for r in self._tensors(outputs)}
        for ref in sorted(self.recorder.written_out, key=lambda r: r.index):
            if private.storage_id(values[ref.index]) in returned:
                constant = self.value(ref)
                made = self._define(ref)
                symbol = Symbol("aten", "clone.default")
                self.numbers.calls.append(BoundSymbol(symbol, (constant,), outputs=made))

    def _tensors(self, tree: Any) -> Iterator[Ref]:
        values = self.recorder.values
        return (r for r in references(tree) if isinstance(values[r.index], torch.Tensor))

    def note_numbers(self, calls: Sequence[Recorded]) -> None:
        """Register sources of sizes: the arguments, and results of ``calls`` with new symbols."""
        if not self.symbols:
            return
        values = self.recorder.values
        self.note_given(self.inputs, [ref for ref, _ in self.inputs])
        known = {name for text in self.numbers.origins for name in size_symbols(text)}
        for ref in references([call.outputs for call in calls]):
            if isinstance(values[ref.index], torch.Tensor):
                self.numbers.tensor(ref, values[ref.index], made=set(self.symbols) - known)
            else:
                self.numbers.number(values[ref.index], ref)

    def note_given(self, inputs: Iterable[tuple[Any, Proxy]], held: Iterable[Ref]) -> None:
        """Register numbers in ``inputs``, or references to them, and tensors in ``held``."""
        values = self.recorder.values
        for given, proxy in inputs:
            if isinstance(proxy, NumberProxy):
                number = values[given.index] if isinstance(given, Ref) else given
                self.numbers.number(number, proxy)
        for ref in held:
            if isinstance(values[ref.index], torch.Tensor):
                self.numbers.tensor(ref, values[ref.index])

    def knows(self, name: str) -> bool:
        """Test if the symbol ``name`` can be computed from the registered sources."""
        try:
            list(self.numbers.needs(name))
        except CannotExpand:
            return False
        return True

    def reads(self, tree: Any) -> Iterator[Ref]:
        """References that a tree of references and symbolic numbers reads."""
        for leaf in leaves(tree):
            if isinstance(leaf, Ref):
                yield leaf
            elif is_symbolic(leaf):
                yield from self.numbers.needs(number_text(leaf))

    def _leaf(self, leaf: Any) -> Any:
        if type(leaf) is Ref:
            return self.value(leaf)
        if isinstance(leaf, torch.Generator):
            return self.recorder.table.generator(leaf)
        return self.numbers.compute(number_text(leaf)) if is_symbolic(leaf) else to_core(leaf)

    def _fresh(self) -> str:
        name = formal_value(self.defined)
        self.defined += 1
        return name

    def _call(self, call: Recorded, context: Context) -> BoundSymbol:
        given = (call.args, call.kwargs)
        args, kwargs = map_tree(self._leaf, given)
        outputs = map_tree(self._define, call.outputs)
        # The function switches grad mode inside, as `torch.no_grad()` does.
        if call.grad != self.grad:
            context = context.with_("grad", call.grad)
        return BoundSymbol(
            call.facts.symbol,
            args,
            tuple(kwargs.items()),
            outputs,
            self._effects(call, given, (args, kwargs)),
            context=context,
        )

    def _define(self, leaf: Any) -> Any:
        if type(leaf) is not Ref:
            return to_core(leaf)
        value = self.recorder.values[leaf.index]
        proxy = self.names[leaf] = value_proxy(self._fresh(), value)
        return proxy

    def _effects(self, call: Recorded, given: Any, args: Any) -> Effects:
        values = self.recorder.values
        pairs = zip(leaves(given), leaves(args), strict=True)
        flat = [leaf for leaf, made in pairs if isinstance(made, Proxy)]
        inputs = {
            i: values[leaf.index]
            for i, leaf in enumerate(flat)
            if isinstance(leaf, Ref) and isinstance(values[leaf.index], torch.Tensor)
        }
        outputs = [values[r.index] for r in references(call.outputs)]
        aliases = tuple(a for a in alias_facts(outputs, inputs) if a.kind != "internal")
        tensors = [t for t in (*outputs, *inputs.values()) if isinstance(t, torch.Tensor)]
        ordered = _ordered(call, tensors)
        return Effects(aliases=aliases, ordered=ordered) if aliases or ordered else NO_EFFECTS

    def _without_autocast(self) -> Context:
        """Context that switches autocast off, since operators are recorded below autocast."""
        on = {k: None for k, v in self.context.items if k.startswith(AUTOCAST) and v}
        return Context(tuple(on.items())) if on else PLAIN_CONTEXT


def _check(condition: Any, message: str) -> BoundSymbol:
    symbol = Symbol("aten", "_assert_scalar.default")
    return BoundSymbol(symbol, (condition, message), effects=Effects(ordered=("side_effect",)))


def _ordered(call: Recorded, tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    found = []
    if call.draws:
        device = tensors[0].device if tensors else torch.device("cpu")
        found.append(f"random:{device_to_core(device)}")
    if resource := call.facts.resource(call.args, call.kwargs):
        found.append(resource)
    elif call.facts.kept:
        found.append("side_effect")
    return tuple(found)

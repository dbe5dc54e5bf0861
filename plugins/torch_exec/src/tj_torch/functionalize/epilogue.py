"""Epilogue of a functional program, which reproduces the acquired program's visible effects.

The outer program calls the functional one and copies new values to the memory that was written.
Then, on the caller's own tensors and in the program's order, it repeats the calls that change
metadata in place or make returned views, and sets version counters. It is a trace like any other.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.extend import (
    NEW_VALUE_OF,
    NO_TAGS,
    BoundSymbol,
    Effects,
    Expand,
    Proxy,
    RuleTable,
    Stage,
    Symbol,
    TagSet,
    Trace,
    TraceEditor,
    leaves,
    map_tree,
    requires_grad,
)
from tj_core.internal import Place, ViewStep

from tj_torch.functionalize.around import Wrap, with_bases, with_errors, wrapping
from tj_torch.functionalize.depended_on import RETURNED_VIEW, DependedOn, copied_back, depended_on
from tj_torch.functionalize.functionalize import Functionalized, Write
from tj_torch.functionalize.indexing import may_refuse_an_index
from tj_torch.functionalize.objects import (
    DATA,
    Unsuitable,
    is_metadata_change,
    reads_data,
    refuses_writes,
)
from tj_torch.functionalize.outer import PROGRAM
from tj_torch.ops.facts.autograd_marks import VERSIONS
from tj_torch.ops.facts.metadata_mutation import is_autograd_change

__all__ = ["with_epilogue"]

SEVERAL = 4
"""Most views of an input that are copied to one by one; beyond, the whole input is copied."""

Claimed = Callable[[BoundSymbol], bool]
"""Test for a call that an executor claims, other than a fallback."""

UNCOUNTED = "copy_all_back", False
"""Name of the call for writes that the version counter must not show; autograd does not see it."""

COPY_BACK = Symbol("tj", "copy_back")
"""Call that writes a value to an input's memory at the end of the functional program."""


def with_epilogue(
    trace: Trace,
    made: Functionalized,
    claimed: Claimed,
    expand: RuleTable[Expand],
    *,
    cut: bool = False,
    fused: bool = False,
) -> tuple[Trace, tuple[Wrap, Trace | None] | None]:
    """Finish the functional program of ``trace``; make its wrapper, None where none is needed.

    The wrapper is a pair for `PassContext.wrap`: a function, and the trace of the outer program.
    With ``fused``, executors may run several calls as one, whose errors differ from the calls'.

    New values whose copy is ``claimed`` by an executor are copied at the end of the functional
    program, the others in the outer one. If other results depend on a new value, autograd copies it
    in the middle, provided that the differentiating plugin can ``cut`` the program there.

    :raises Unsuitable: if the effects cannot be reproduced.
    """
    writer = _Outer(trace, made, claimed, cut)
    outputs = writer.write()
    if (
        not writer.calls
        and not (writer.inside or writer.depended_on.written)
        and not (made.autograd_changes or made.members)
        and writer.received.keys() >= {p.name for p in _proxies(outputs)}
    ):
        again = fused and may_refuse_an_index(trace)
        return made.editor.done(outputs=outputs), (with_errors(trace), None) if again else None
    received = tuple(writer.received.values())
    call = BoundSymbol(PROGRAM, trace.inputs, outputs=received, context=made.trace.context)
    editor = TraceEditor(trace)
    editor.append(call, *writer.calls)
    epilogue = editor.done(outputs=outputs, stage=Stage.ACQUIRED, tags=NO_TAGS, history=())
    made.editor.append(*writer.inside)
    if made.members:
        wrap = with_bases(epilogue, made)
    else:
        wrap = wrapping(trace, made, epilogue, expand, writer.depended_on.written, fused)
    return made.editor.done(outputs=received), (wrap, epilogue)


def _proxies(tree: Any) -> Iterator[Proxy]:
    return (x for x in leaves(tree) if isinstance(x, Proxy))


@dataclass
class _Outer:
    """Builder of the outer program.

    ``received`` are the values that the functional program returns, by name; ``env`` has the outer
    program's value for each object of the acquired program; ``inside`` are calls for the end of
    the functional program; ``done`` counts the bumps of each version counter that calls of the
    outer program cause; ``depended_on`` are objects that autograd makes or writes.
    """

    trace: Trace
    made: Functionalized
    claimed: Claimed
    cut: bool = False
    calls: list[BoundSymbol] = field(default_factory=list)
    inside: list[BoundSymbol] = field(default_factory=list)
    received: dict[str, Proxy] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    depended_on: DependedOn = field(default_factory=DependedOn)

    def __post_init__(self) -> None:
        self.namer = self.made.editor.fresh
        self.inputs = {p.name: p for p in self.trace.inputs}
        members = {n: self.inputs[argument] for n, argument in self.made.members.items()}
        self.env = self.inputs | members
        self.objects = self.made.objects

    def write(self) -> Any:
        """Add all calls; return the outputs of the outer program."""
        tensors = [p for p in _proxies(self.trace.outputs) if p.name in self.objects.names]
        refusable = dict.fromkeys(self.refusable())
        returned = {self.objects.names[p.name]: None for p in tensors}
        for root in {self.objects.places[name].root: None for name in (*returned, *refusable)}:
            if root not in self.inputs:
                self.env[root] = self.receive(self.made.value(Place(root)))
        self.depended_on = depended_on(self.made, returned, cut=self.cut)
        self.env |= {name: self.receive_view(p) for name, p in self.depended_on.views.items()}
        for name in self.depended_on.written:
            self.receive(copied_back(self.made, name))
            self.done[name] = self.objects.bumps[name]
        copies = {n: w for r, ws in self.made.writes.items() for n, w in self.copies(r, ws).items()}
        wanted = returned.keys() | self.inputs.keys() | copies.keys()
        wanted |= self.made.members.keys() | refusable.keys()
        outside = {n: w for n, w in copies.items() if not self.copied_inside(n, w)}
        again = self.needed(wanted)
        self.check_later(again)
        self.count_back(again)
        if not again:
            outside = self.copied_together(outside)
        # `position` views come before a write: even numbers for copies, odd ones for views.
        steps: list[tuple[int, Callable[[], None]]] = [
            (2 * w.position, functools.partial(self.copy_back, n, w)) for n, w in outside.items()
        ]
        for counter, (position, missing) in self.uncounted(outside, again).items():
            steps.append((2 * position, functools.partial(self.catch_up, counter, missing)))
        steps += [(2 * i + 1, functools.partial(self.again, call)) for i, call in again]
        # In the program's order: to autograd, a view made before a write differs from a later one.
        for _, step in sorted(steps, key=lambda step: step[0]):
            step()
        self.versions(self.objects.counter[self.objects.names[p.name]] for p in tensors)
        # The mode that the program leaves behind must not hold for the calls before.
        self.calls += self.made.last
        return map_tree(self.known, self.trace.outputs, Proxy)

    # ------------------------------------------------------------------ values

    def receive(self, p: Proxy) -> Proxy:
        """``p`` as a value that the functional program returns, or an input."""
        return self.inputs.get(p.name) or self.received.setdefault(p.name, p)

    def receive_view(self, p: Proxy) -> Proxy:
        """`receive` for a view on which other results depend, which gets a tag."""
        self.made.editor.inherit(p, TagSet([RETURNED_VIEW.name]))
        return self.receive(p)

    def known(self, p: Proxy) -> Proxy:
        """Value in the outer program for a value of the acquired program."""
        found = self.env.get(self.objects.names.get(p.name, ""))
        return self.receive(p) if found is None else found

    # ------------------------------------------------------------------ writes

    def copies(self, root: str, writes: Mapping[str, Write]) -> Mapping[str, Write]:
        """Objects through which new values are copied to an input's memory, with the last write."""
        if root not in self.inputs or root in self.depended_on.written:
            return {}
        if root not in writes and len(writes) <= SEVERAL:
            return writes
        last = list(writes.values())[-1]
        return {root: Write(self.made.roots[root], last.position, last.visible)}

    def copied_inside(self, name: str, write: Write) -> bool:
        """Decide if an executor copies the new value of input ``name`` in the functional program.

        Only if autograd is not involved, and to the input itself: views are made again outside.
        """
        if self.made.differentiates or name not in self.inputs or write.place.path:
            return False
        value = self.made.value(Place(name))
        context = self.trace.context.with_("grad", False)
        effects = Effects(mutates=(0,), marks=((VERSIONS, 0, 0),), copies_back=True)
        call = BoundSymbol(COPY_BACK, (self.inputs[name], value), effects=effects, context=context)
        if value.name in self.inputs or not self.claimed(call):
            return False
        self.inside.append(call)
        return True

    def copied_together(self, copies: dict[str, Write]) -> dict[str, Write]:
        """Copy new values of several inputs by one call; return the other ``copies``.

        Without views of inputs, the order of copies of new values does not show. Writes that the
        version counter must not show, as of running statistics by a batch norm, are one more call.
        """
        values = {n: self.new_value(n, w) for n, w in copies.items()}
        whole = [n for n, w in copies.items() if self.is_without_order(n, w, values[n])]
        if len(whole) < max(len(copies), 2):
            return copies
        groups: dict[tuple[str, bool], list[str]] = {}
        missing: dict[int, list[str]] = {}
        for name in whole:
            if self.is_only_new_value(name, copies[name], values[name]):
                self.made.editor.inherit(values[name], TagSet({NEW_VALUE_OF: name}))
            self.made.check_copy(self.inputs[name], values[name], self.trace.context)
            bumps = self.objects.bumps.get(self.objects.counter[name])
            kind = ("copy_all", self.takes_gradients(copies[name])) if bumps else UNCOUNTED
            groups.setdefault(kind, []).append(name)
            if bumps:
                self.done[name] = bumps
                missing.setdefault(bumps - 1, []).append(name)
        for (symbol, grad), names in groups.items():
            args = tuple(self.inputs[n] for n in names), tuple(values[n] for n in names)
            effects = Effects(mutates=tuple(range(len(names))))
            self.call(Symbol("tj", symbol), args, grad=grad, effects=effects)
        missing.pop(0, None)
        for count, names in missing.items():
            self.call(Symbol("tj", "bump_versions"), (tuple(map(self.inputs.get, names)), count))
        return {}

    def new_value(self, name: str, write: Write) -> Proxy:
        """The value that the functional program returns to be copied through ``name``."""
        straight = self.made.straight(write.place)
        return self.receive(straight or self.made.value(Place(write.place.root)))

    def takes_gradients(self, write: Write) -> bool:
        return write.visible and self.trace.context.get("grad") is not False

    def copy_back(self, name: str, write: Write) -> None:
        """Copy the new value of an input to its memory, through the object ``name``."""
        target, counter = self.env[name], self.objects.counter[name]
        if not self.objects.bumps.get(counter):  # a write that the version counter must not show
            # A write through `x.data` leaves `x._version` as it is.
            target = self.call(Symbol("torch", DATA), (target,), out=target)
        else:
            self.done[counter] = self.done.get(counter, 0) + 1
        straight = self.made.straight(write.place)
        value = self.receive(straight or self.made.value(Place(write.place.root)))
        if self.is_only_new_value(name, write, value):
            self.made.editor.inherit(value, TagSet({NEW_VALUE_OF: name}))
        for step in write.place.path if straight is None else ():
            value = self.view(step, value)
        grad = write.visible and self.trace.context.get("grad") is not False
        self.made.check_copy(target, value, self.trace.context)
        copy = Symbol("torch", "Tensor.copy_")
        self.call(copy, (target, value), grad=grad, effects=Effects(mutates=(0,)))

    def is_only_new_value(self, name: str, write: Write, value: Proxy) -> bool:
        """Test if ``value`` is used only to be copied to the input ``name``."""
        return not self.made.differentiates and self.is_without_order(name, write, value)

    def is_without_order(self, name: str, write: Write, value: Proxy) -> bool:
        """Test if the copy of ``value`` to the whole input ``name`` may come at any time."""
        own = name in self.inputs and not write.place.path and value.name not in self.inputs
        recorded = self.made.differentiates and any(
            map(requires_grad, (self.inputs.get(name), value))
        )
        return own and not (recorded or self.made.members)

    def uncounted(
        self, copies: Mapping[str, Write], again: Iterable[tuple[int, BoundSymbol]]
    ) -> dict[str, tuple[int, int]]:
        """Position of the last copy to each input, and the number of writes still to be counted.

        By version counter. Changes of metadata count as well, before or after that copy.
        """
        planned = [self.objects.counter[name] for name in copies]
        for _, call in again:
            planned += self.bumped(call)
        last: dict[str, int] = {}
        for name, write in copies.items():
            counter = self.objects.counter[name]
            last[counter] = max(write.position, last.get(counter, 0))
        found = {c: (at, self.objects.bumps.get(c, 0) - planned.count(c)) for c, at in last.items()}
        return {c: (at, n) for c, (at, n) in found.items() if n > 0 and c in self.inputs}

    def bumped(self, call: BoundSymbol) -> list[str]:
        """Version counters that a change of metadata by ``call`` bumps, one entry per bump."""
        if is_autograd_change(call):
            # `detach_` and `requires_grad_` bump no version counter.
            return []
        names = [self.objects.names[call.flat_args[i].name] for i, _ in call.effects.rebinds]
        return [self.objects.counter[name] for name in names]

    def count_back(self, again: Iterable[tuple[int, BoundSymbol]]) -> None:
        """Reset version counters of memory that the functional program made.

        The functional program returns it with its final version, which autograd records for saved
        tensors; the changes of metadata that are repeated here bump it again.
        """
        changes = Counter(c for _, call in again for c in self.bumped(call))
        for counter, count in changes.items():
            if counter in self.env and counter not in self.inputs:
                before = self.objects.bumps[counter] - count
                self.call(Symbol("tj", "set_version"), (self.env[counter], before))

    def catch_up(self, counter: str, missing: int) -> None:
        """Bump the version of an input by ``missing``."""
        self.call(Symbol("tj", "bump_version"), (self.inputs[counter], missing))
        self.done[counter] = self.done.get(counter, 0) + missing

    def view(self, step: ViewStep, viewed: Proxy) -> Proxy:
        """View of ``viewed`` by ``step``; the functional program returns roots only."""
        old = step.call.flat_args[step.argument].name
        made = self.renamed(step.call, lambda p: viewed if p.name == old else self.known(p))
        self.calls.append(made)
        return made.flat_outs[step.output]

    def versions(self, returned: Iterable[str]) -> None:
        """Bring the version counters of inputs and returned objects to their final values."""
        for counter in dict.fromkeys((*self.inputs, *returned)):
            bumps = self.objects.bumps.get(counter, 0)
            missing = bumps - self.done.get(counter, 0)
            if counter in self.inputs and missing > 0:
                self.catch_up(counter, missing)
            elif counter in self.inputs and missing < 0:
                raise Unsuitable(f"more copies to {counter} than writes")
            elif counter not in self.inputs and (
                self.objects.places[counter].path or self.done.get(counter)
            ):
                self.call(Symbol("tj", "set_version"), (self.env[counter], bumps))

    # ------------------------------------------------------------------ views and metadata

    def needed(self, objects: Iterable[str]) -> list[tuple[int, BoundSymbol]]:
        """Calls that make the ``objects`` or change their metadata, with their positions.

        Includes the calls for their bases, which a view's ``_base`` shows.
        """
        wanted: set[str] = set()
        views = self.depended_on.views.keys()
        found, kept = set(objects) - views, []
        while found - wanted:
            wanted |= found
            kept = [(i, c) for i, c in enumerate(self.made.views) if self.makes(c) & wanted]
            found = {name for _, call in kept for name in self.viewed(call)} - views
        return kept

    def check_later(self, again: Iterable[tuple[int, BoundSymbol]]) -> None:
        """Check that no view is to be repeated that precedes autograd's write to its base.

        :raises Unsuitable: if one is.
        """
        for name in self.depended_on.written:
            last = max(w.position for w in self.made.writes[name].values())
            for i, call in again:
                roots = {self.objects.places[viewed].root for viewed in self.viewed(call)}
                if i < last and name in roots:
                    raise Unsuitable("a result depends on a written argument with older views")

    def refusable(self) -> Iterator[str]:
        """Objects whose change of metadata autograd may refuse.

        That is for a view of a leaf, and for one of several views from one call.
        """
        for call in self.made.views:
            for i, _ in call.effects.rebinds:
                p = call.flat_args[i]
                place = self.objects.place(p)
                # "a view of a leaf Variable that requires grad is being used in an in-place
                # operation", for `unsqueeze_` as for a write; the input is a leaf to autograd, or
                # may be one in another call.
                may = place.root in self.inputs or any(map(refuses_writes, place.path))
                if requires_grad(p) and may:
                    yield self.objects.names[p.name]

    def viewed(self, call: BoundSymbol) -> set[str]:
        indices = [a.index for a in call.effects.aliases if a.kind == "arg"]
        indices += [i for i, _ in call.effects.rebinds] + [0] * reads_data(call)
        return {self.objects.names[call.flat_args[i].name] for i in indices}

    def makes(self, call: BoundSymbol) -> set[str]:
        """Objects that ``call`` makes or changes the metadata of."""
        rebound = {i for i, _ in call.effects.rebinds if is_metadata_change(call, i)}
        changed = {self.objects.names[call.flat_args[i].name] for i in rebound}
        own = {p.name for p in call.flat_outs if self.objects.names.get(p.name) == p.name}
        return changed | own

    def again(self, call: BoundSymbol) -> None:
        """Repeat ``call`` on the caller's objects."""
        made = self.renamed(call, self.known)
        for counter in self.bumped(call):
            self.done[counter] = self.done.get(counter, 0) + 1
        rebinds = []
        for i, p in call.effects.rebinds:
            now = p.replace(name=made.flat_args[i].name)
            self.env[self.objects.names[p.name]] = now
            rebinds.append((i, now))
        self.calls.append(made.replace(effects=replace(call.effects, rebinds=tuple(rebinds))))
        for old, new in zip(call.flat_outs, made.flat_outs, strict=True):
            if self.objects.names.get(old.name) == old.name:
                self.env[old.name] = new

    # ------------------------------------------------------------------ new calls

    def renamed(self, call: BoundSymbol, argument: Callable[[Proxy], Proxy]) -> BoundSymbol:
        """``call`` with other arguments and new names for its outputs."""
        args, kwargs = map_tree(argument, (call.args, call.kwargs), Proxy)
        outputs = map_tree(lambda p: p.replace(name=self.namer(p.name)), call.outputs, Proxy)
        return call.replace(args=args, kwargs=kwargs, outputs=outputs, body=None)

    def call(
        self,
        symbol: Symbol,
        args: tuple[Any, ...],
        *,
        grad: bool = False,
        out: Proxy | None = None,
        effects: Effects | None = None,
    ) -> Any:
        """Add a call that returns a value like ``out``, or nothing."""
        outputs = None if out is None else out.replace(name=self.namer(out.name))
        effects = effects or Effects(ordered=("side_effect",))
        context = self.trace.context.with_("grad", grad)
        self.calls.append(
            BoundSymbol(symbol, args, outputs=outputs, effects=effects, context=context)
        )
        return outputs

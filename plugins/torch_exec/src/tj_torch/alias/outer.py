"""What stands around a functional program: it gives the caller what the program as written does.

The outer program calls the functional one, copies new values to the memory that was written, does
again, on the caller's own tensors and in the order of the program, what changed metadata in place
and what made the views that are returned, and sets version counters. It is a trace like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.codegen import generate
from tj_core.proxy import Proxy
from tj_core.records import Wrapped
from tj_core.symbol import BoundSymbol, Effects, Symbol
from tj_core.trace import Namer, PassRecord, Trace
from tj_core.tree import leaves, map_tree

from tj_torch.alias.functionalize import Functionalized
from tj_torch.alias.objects import DATA, Place, Step, is_metadata_change

__all__ = ["around"]

PROGRAM = Symbol("tj", "program")
"""The functional program, in the outer one."""


def around(trace: Trace, made: Functionalized, record: PassRecord) -> Wrapped:
    """The functional program of ``trace``, and the outer one."""
    writer = _Outer(trace, made)
    outputs = writer.write()
    received = tuple(writer.received.values())
    call = BoundSymbol(PROGRAM, trace.inputs, outputs=received, context=trace.context)
    outer = Trace(
        trace.inputs,
        (call, *writer.calls),
        outputs,
        context=trace.context,
        history=(PassRecord("outer", record.plugin),),
        language=trace.language,
    )

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        return generate(outer, {PROGRAM: function}).function

    return Wrapped(trace.after(record, calls=tuple(made.calls), outputs=received), wrap, outer)


@dataclass
class _Outer:
    """The outer program while it is written.

    ``received`` is what the functional program returns, by name; ``env`` what stands for each
    object of the program as written; ``done`` counts, for each version counter, the bumps that
    happen by themselves.
    """

    trace: Trace
    made: Functionalized
    calls: list[BoundSymbol] = field(default_factory=list)
    received: dict[str, Proxy] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inner = (p.name for call in self.made.calls for p in call.flat_outs)
        self.namer = Namer(self.trace.names() | set(inner))
        self.inputs = {p.name: p for p in self.trace.inputs}
        self.env = dict(self.inputs)
        self.objects = self.made.objects

    def write(self) -> Any:
        """Write all calls; what the outer program returns."""
        returned = [p for p in leaves(self.trace.outputs) if isinstance(p, Proxy)]
        tensors = [p for p in returned if p.name in self.objects.names]
        for root in self.made.writes:
            if root in self.inputs:
                self.copy_back(root)
        for root in dict.fromkeys(self.objects.place(p).root for p in tensors):
            if root not in self.inputs:
                self.env[root] = self.receive(self.made.value(Place(root)))
        wanted = {self.objects.names[p.name] for p in tensors} | self.inputs.keys()
        for call in self.needed(wanted):
            self.again(call)
        self.versions(self.objects.place(p).counter for p in tensors)
        self.calls += self.made.last
        return map_tree(self.output, self.trace.outputs, Proxy)

    # ------------------------------------------------------------------ values

    def receive(self, p: Proxy) -> Proxy:
        """A value of the functional program, which returns it."""
        return self.inputs.get(p.name) or self.received.setdefault(p.name, p)

    def output(self, p: Proxy) -> Proxy:
        name = self.objects.names.get(p.name)
        return self.receive(p) if name is None else self.env[name]

    def known(self, p: Proxy) -> Proxy:
        """What stands for an argument of a call of the program as written."""
        found = self.env.get(self.objects.names.get(p.name, ""))
        return self.receive(p) if found is None else found

    # ------------------------------------------------------------------ writes

    def copy_back(self, root: str) -> None:
        """The new value of an input goes to its memory; through the view, if it is one's."""
        writes = self.made.writes[root]
        path = writes.paths[0] if len(writes.paths) == 1 else ()
        if any(step.changes_metadata for step in path):
            path = ()  # the object has its old metadata yet
        target = self.inputs[root]
        for step in path:
            target = self.through(step, target)
        if writes.shares_version:
            self.done[root] = self.done.get(root, 0) + 1
        elif not path:
            target = self.call(Symbol("torch", DATA), (target,), out=target)
        value = self.receive(self.made.value(Place(root, path)))
        grad = writes.visible and self.trace.context.get("grad") is not False
        copy = Symbol("torch", "Tensor.copy_")
        self.call(copy, (target, value), grad=grad, effects=Effects(mutates=(0,)))

    def through(self, step: Step, target: Proxy) -> Proxy:
        """The view of ``target`` that ``step`` makes."""
        old = step.call.flat_args[step.argument].name
        made = self.renamed(step.call, lambda p: target if p.name == old else self.known(p))
        self.calls.append(made)
        return made.flat_outs[step.output]

    def versions(self, returned: Iterable[str]) -> None:
        """Bring the version counters of inputs, and of what is returned, to what they would be."""
        for counter in dict.fromkeys((*self.inputs, *returned)):
            bumps = self.objects.bumps.get(counter, 0)
            if counter not in self.inputs:
                if bumps:
                    self.call(Symbol("tj", "set_version"), (self.env[counter], bumps))
            elif missing := bumps - self.done.get(counter, 0):
                self.call(Symbol("tj", "bump_version"), (self.inputs[counter], missing))

    # ------------------------------------------------------------------ views and metadata

    def needed(self, objects: Iterable[str]) -> list[BoundSymbol]:
        """The calls that make the ``objects``, or change their metadata, in order."""
        wanted, kept = set(objects), []
        for call in reversed(self.made.views):
            viewed, made = self.viewed(call), self.makes(call)
            if made & wanted:
                kept.append(call)
                wanted |= viewed
        return kept[::-1]

    def viewed(self, call: BoundSymbol) -> set[str]:
        indices = [a.index for a in call.effects.aliases if a.kind == "arg"]
        indices += [i for i, _ in call.effects.rebinds] + [0] * (call.symbol.name == DATA)
        return {self.objects.names[call.flat_args[i].name] for i in indices}

    def makes(self, call: BoundSymbol) -> set[str]:
        """The objects that ``call`` makes or changes the metadata of."""
        rebound = {i for i, _ in call.effects.rebinds if is_metadata_change(call, i)}
        changed = {self.objects.names[call.flat_args[i].name] for i in rebound}
        own = {p.name for p in call.flat_outs if self.objects.names.get(p.name) == p.name}
        return changed | own

    def again(self, call: BoundSymbol) -> None:
        """Do ``call`` again, on the caller's objects."""
        made = self.renamed(call, self.known)
        rebinds = []
        for i, p in call.effects.rebinds:
            place = self.objects.place(call.flat_args[i])
            self.done[place.counter] = self.done.get(place.counter, 0) + 1
            now = p.replace(name=made.flat_args[i].name)
            self.env[self.objects.names[p.name]] = now
            rebinds.append((i, now))
        self.calls.append(made.replace(effects=replace(call.effects, rebinds=tuple(rebinds))))
        for old, new in zip(call.flat_outs, made.flat_outs, strict=True):
            if self.objects.names.get(old.name) == old.name:
                self.env[old.name] = new

    # ------------------------------------------------------------------ new calls

    def renamed(self, call: BoundSymbol, argument: Callable[[Proxy], Proxy]) -> BoundSymbol:
        """``call`` with other arguments and outputs of its own."""
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
        """Add a call; what it returns is like ``out``."""
        outputs = None if out is None else out.replace(name=self.namer(out.name))
        effects = effects or Effects(ordered=("side_effect",))
        context = self.trace.context.with_("grad", grad)
        self.calls.append(
            BoundSymbol(symbol, args, outputs=outputs, effects=effects, context=context)
        )
        return outputs

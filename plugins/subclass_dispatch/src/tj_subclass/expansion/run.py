"""Runs of calls on fake tensors of subclasses, whose inner tensors are recorded.

The operators of a subclass run above functionalization::

    autograd -> __torch_dispatch__ -> functionalization -> recorder -> fake tensors

so a body is one of operators on the subclass. Each of these has a dense body: it flattens the
arguments, computes with what is in them, and puts the results together. The leaves of the autograd
graph are the subclasses themselves.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from tj_core.extend import (
    Alias,
    Body,
    BoundSymbol,
    Context,
    Effects,
    NumberProxy,
    Proxy,
    TensorProxy,
    formal_value,
    leaves,
    map_tree,
)
from tj_torch.extend import (
    Expansion,
    is_symbolic,
    is_wrapper,
    storage_id,
    surroundings,
    tensor_proxy,
    to_core_tree,
)
from tj_torch.internal import (
    CannotExpand,
    NonLeaf,
    Recorded,
    Recorder,
    Ref,
    Run,
    alias_facts,
    autograd_marks,
    constant_leaf,
    dense_tensors,
    deny_data_pointer,
    functionalization_below_subclasses,
    functionalized,
    make_fake,
    metadata_mutated,
    placed_tensors,
    plain,
    runs_python,
    same_tensors,
    unflatten,
    unwrapped,
    value_proxy,
    versioned,
)

from tj_subclass.expansion.flattening import (
    dense_proxies,
    flatten_call,
    layout_of,
    same_but_strides,
    symbols_of_layout,
    unflatten_call,
)
from tj_subclass.expansion.level_bodies import LevelBuilder
from tj_subclass.expansion.levels import Event, Levels, Whole, value

__all__ = ["Parts", "WrappedRun", "shared"]

T = TypeVar("T")

Parts = tuple[Any, ...]
"""The references of the dense values that a tensor consists of: one for a plain tensor. Of a
symbolic number that no operator returned, it itself."""


@dataclass(frozen=True, slots=True)
class Called:
    """Outcome of a function: the tree it returned, its tensors and numbers, and their parts.

    ``after`` are the parts of the arguments that it wrote, by name, ``versions`` how often each of
    these was counted to be written. ``untracked`` are those whose write autograd does not see.
    ``changed`` says of arguments whether they require a gradient then, where they did not, or did.
    """

    outputs: Any
    values: list[Any]
    parts: list[Parts]
    after: Mapping[str, Parts]
    versions: Mapping[str, int]
    untracked: frozenset[str]
    changed: Mapping[str, bool]

    @property
    def tensors(self) -> list[tuple[int, torch.Tensor]]:
        """The tensors, and their positions among all values."""
        return placed_tensors(self.values)


@dataclass
class WrappedRun(Run):
    """A run of a call that takes or returns tensor subclasses.

    ``parts`` are the dense values of each argument, ``levels`` notes the operators on subclasses.
    """

    parts: dict[str, Parts] = field(default_factory=dict)
    levels: Levels | None = None

    @classmethod
    def of(cls, run: Run) -> WrappedRun:
        """A new run of the call of ``run``, with its flags."""
        given = run.mode, run.table, run.denied, run.fn, run.tree, run.arguments, run.context
        made = cls(*given, run.sizes, run.autograd, run.nonleaf, run.decompose)
        if run.symbolic is not None:
            made.make_symbolic()
        return made

    # ------------------------------------------------------------------ running

    def expansion(self) -> Expansion:
        """Run the function under the recorder and describe what happened."""
        recorder = self.recorder()
        with surroundings(self.grad, self.rest):
            self.wrap(recorder)
            with self.modes(recorder):
                called = self.called(recorder)
        return self.on_levels(
            lambda whole: self.described(recorder, called, self.events(recorder, whole=whole))
        )

    def events(
        self, recorder: Recorder, start: int = 0, stop: int | None = None, *, whole: bool
    ) -> Sequence[Event]:
        """Events of the recorded calls ``start`` to ``stop``.

        ``whole``: operators on subclasses, else the plain calls alone.
        """
        calls = recorder.calls[start:stop]
        return self.levels.events(calls, start) if whole and self.levels else calls

    def on_levels(self, describe: Callable[[bool], T]) -> T:
        """Call ``describe`` for operators on subclasses, and for plain ones where that fails.

        It fails where a subclass keeps a tensor that is no argument, and where sizes are asserted,
        made, or are neither those of arguments nor of their parts.
        """
        # Bodies of two levels hold no assertions of sizes, and no sizes that calls make.
        if self.symbolic is not None and (self.symbolic.checks or self.symbolic.made):
            return describe(False)
        with contextlib.suppress(CannotExpand):
            return describe(True)
        return describe(False)

    @contextlib.contextmanager
    def modes(self, recorder: Recorder) -> Iterator[None]:
        """The modes of `Run`, and `Levels` above functionalization."""
        self.levels = Levels(recorder)
        with super().modes(recorder), self.levels:
            yield

    def functionalization(self) -> contextlib.AbstractContextManager[None]:
        """Functionalization with subclasses above it."""
        return functionalization_below_subclasses()

    def wrap(self, recorder: Recorder) -> None:
        """Make the arguments: tensors of subclasses over functionalized fakes."""
        for name, argument in self.arguments.items():
            if isinstance(argument.proxy, NumberProxy):
                number = self.numbers[name] = self._number(argument.proxy)
                self.parts[name] = (recorder.define(number),)
                continue
            proxy = argument.proxy
            fakes = self.dense_fakes(proxy)
            self.parts[name] = tuple(recorder.define(fake) for fake in fakes)
            tensor = self.over(proxy, fakes)
            if proxy.requires_grad and self.autograd:
                self.leaves[name] = tensor.requires_grad_()
                if self.nonleaf:
                    tensor = NonLeaf.of(tensor, functools.partial(self.over, proxy, fakes))
            self.wrapped[name] = tensor

    def made(self, recorder: Recorder, proxy: TensorProxy) -> tuple[torch.Tensor, Parts]:
        """A tensor with the metadata of ``proxy``, and its parts."""
        fakes = self.dense_fakes(proxy)
        return self.over(proxy, fakes), tuple(recorder.define(fake) for fake in fakes)

    def over(self, proxy: TensorProxy, fakes: Sequence[torch.Tensor]) -> torch.Tensor:
        """A tensor with the metadata of ``proxy`` that consists of ``fakes``, made functional."""
        tensors = [functionalized(fake) for fake in fakes]
        for tensor in tensors:
            deny_data_pointer(tensor)
        return self.assembled(proxy, tensors)

    def dense_fakes(self, proxy: TensorProxy) -> list[torch.Tensor]:
        """Fake tensors with the metadata of the dense tensors that ``proxy`` consists of."""
        return [make_fake(self.mode, p, self.size) for p in dense_proxies(proxy)]

    def assembled(self, proxy: TensorProxy, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor with the metadata of ``proxy`` that consists of ``parts``."""
        if proxy.subclass is None:
            return parts[0]
        return unflatten(layout_of(proxy), parts, self.sizes_of(proxy))

    def sizes_of(self, proxy: Proxy) -> tuple[Any, ...]:
        """Values of the symbols in the layout of ``proxy``."""
        return tuple(self.size(n.name) for n in symbols_of_layout(proxy))

    def plainly(self, *, autograd: bool = False) -> None:
        """Make the arguments of plain fakes; with ``autograd``, requiring gradients as declared."""
        for name, argument in self.arguments.items():
            if isinstance(argument.proxy, NumberProxy):
                self.numbers[name] = self._number(argument.proxy)
                continue
            tensor = self.assembled(argument.proxy, self.dense_fakes(argument.proxy))
            grad = autograd and argument.proxy.requires_grad
            self.wrapped[name] = tensor.requires_grad_() if grad else tensor

    def called(self, recorder: Recorder) -> Called:
        """Call the function, inside of `modes`.

        :raises CannotExpand: if it gives an argument other parts.
        """
        before = {n: (w._version, [*dense_tensors(w)]) for n, w in self.wrapped.items()}
        history = {n: w.grad_fn for n, w in self.wrapped.items()}
        needs = {n: w.requires_grad for n, w in self.wrapped.items()}
        given = self.wrapped.values()
        with self.denied.watching(self.fn, given), same_tensors(given):
            outputs = to_core_tree(self.call(), plain)
        values = [x for x in leaves(outputs) if isinstance(x, torch.Tensor) or is_symbolic(x)]
        versions = {n: w._version - before[n][0] for n, w in self.wrapped.items()}
        after = {n: self.refs_of(recorder, w) for n, w in self.wrapped.items()}
        counts = self.fn is not versioned
        written = [n for n, now in after.items() if versions[n] * counts or now != self.parts[n]]
        for name in written:
            self.check_write(name, before[name][1])
        return Called(
            outputs,
            values,
            [self.refs_of(recorder, v) for v in values],
            {n: after[n] for n in written},
            {n: versions[n] for n in written},
            frozenset(n for n in written if self.is_untracked(n, history[n])),
            {n: w.requires_grad for n, w in self.wrapped.items() if w.requires_grad != needs[n]},
        )

    def check_write(self, name: str, parts: Sequence[torch.Tensor]) -> None:
        """Check that argument ``name`` still consists of ``parts``, and kept its metadata.

        :raises CannotExpand: if not.
        """
        tensor, formal = self.wrapped[name], self.formals[name]
        now = tensor_proxy(formal.name, tensor)
        same = [old is new for old, new in zip(parts, dense_tensors(tensor), strict=False)]
        # What is written keeps its strides; what functionalization computes for it does not.
        changed = now.strides != formal.strides or any(map(metadata_mutated, parts))
        if changed or not all(same) or not same_but_strides(now, formal):
            raise CannotExpand("it makes another tensor subclass of an argument")

    def held(self, recorder: Recorder, called: Called, kept: Sequence[Ref]) -> Iterator[Alias]:
        """Yield the aliases of ``kept`` values with the parts of arguments and results."""
        found: dict[int, tuple[Literal["arg", "out"], int]] = {}

        def note(tensor: Any, kind: Literal["arg", "out"], index: int) -> None:
            if isinstance(tensor, torch.Tensor) and is_wrapper(tensor):
                refs = self.refs_of(recorder, tensor)
                memory = (storage_id(recorder.values[r.index]) for r in refs)
                for storage in memory:
                    found.setdefault(storage, (kind, index))

        for name, tensor in self.wrapped.items():
            note(tensor, "arg", self.arguments[name].index)
        for j, tensor in enumerate(called.values):
            note(tensor, "out", j)
        for i, ref in enumerate(kept, len(called.values)):
            value = recorder.values[ref.index]
            if isinstance(value, torch.Tensor) and storage_id(value) in found:
                yield Alias(i, *found[storage_id(value)])

    def afterwards(self, name: str, called: Called) -> TensorProxy:
        """Metadata of argument ``name`` after the call, which may change ``requires_grad``."""
        formal: TensorProxy = self.formals[name]
        needs = called.changed.get(name)
        return formal if needs is None else formal.replace(requires_grad=needs)

    def refs_of(self, recorder: Recorder, tensor: Any) -> Parts:
        """References of the parts of ``tensor``; a symbolic number itself."""
        if not isinstance(tensor, torch.Tensor):
            return (tensor,)
        return tuple(recorder.ref(unwrapped(t)) for t in dense_tensors(tensor))

    # ------------------------------------------------------------------ describing

    def described(
        self,
        recorder: Recorder,
        called: Called,
        events: Sequence[Event],
        kept: Sequence[Ref] = (),
    ) -> Expansion:
        """The expansion of ``events``; ``kept`` values are returned beside the outputs."""
        now = {n: self.afterwards(n, called) for n in self.wrapped}
        formal = {id(w): now[n] for n, w in self.wrapped.items()}
        made: dict[int, Any] = {}

        def proxy(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) and not is_symbolic(leaf):
                return constant_leaf(leaf)
            known = formal.get(id(leaf)) or made.get(id(leaf))
            found = known or value_proxy(formal_value(len(made)), leaf)
            return made.setdefault(id(leaf), found)

        outputs = map_tree(proxy, called.outputs)
        proxies = [p for p in leaves(outputs) if isinstance(p, Proxy)]
        first = len(made)
        extra = [
            value_proxy(formal_value(first + i), recorder.values[r.index])
            for i, r in enumerate(kept)
        ]
        inputs = [(self.formals[n], self.parts[n]) for n in self.arguments]
        new = {
            now[n].name: now[n].replace(name=formal_value(first + len(kept) + i))
            for i, n in enumerate(called.after)
        }
        results = [
            *((new.get(p.name) or p, ps) for p, ps in zip(proxies, called.parts, strict=True)),
            *((p, (r,)) for p, r in zip(extra, kept, strict=True)),
            *zip(new.values(), called.after.values(), strict=True),
        ]
        checks = self.symbolic.checks if self.symbolic else {}
        body, found = self.body_of(
            recorder, inputs, results, events, self.grad, self.context, checks
        )
        values = iter(found)
        tree = map_tree(lambda p: next(values), outputs, Proxy)
        beside = tuple(itertools.islice(values, len(kept)))
        returned = (tree, beside) if kept else tree
        written = tuple(self.arguments[n].index for n in called.after)
        updates = tuple(zip(written, values, strict=True))
        versions = {self.arguments[n].index: count for n, count in called.versions.items()}
        at = {self.arguments[n].index: w for n, w in self.wrapped.items()}
        everything = [*called.values, *(recorder.values[r.index] for r in kept)]
        body = replace(body, outputs=returned, updates=updates)
        ordered = {r: None for c in body.calls for r in c.effects.ordered if r != "side_effect"}
        untracked = (self.arguments[n].index for n in called.after if n in called.untracked)
        marks = tuple(autograd_marks(versions, untracked))
        rebinds = [(self.arguments[n].index, p) for n, p in now.items() if p != self.formals[n]]
        aliases = (*shared(everything, at), *self.held(recorder, called, kept))
        effects = Effects(written, tuple(rebinds), aliases, tuple(ordered), marks)
        return Expansion(
            (outputs, tuple(extra)) if kept else outputs,
            effects,
            body,
            "COMPOSITE" if _is_composite(called, events) else "KERNEL",
            recorder.captured,
            self.symbols,
            self.symbolic.made if self.symbolic else (),
            self.symbolic.guards if self.symbolic else (),
        )

    def body_of(
        self,
        recorder: Recorder,
        inputs: Sequence[tuple[Proxy, Parts]],
        results: Sequence[tuple[Proxy, Parts]],
        events: Sequence[Event],
        grad: bool,
        context: Context,
        checks: Mapping[str, str] | None = None,
    ) -> tuple[Body, list[Any]]:
        """Build the body over ``inputs``; return it, and the values in it of ``results``.

        It asserts ``checks``: conditions on sizes, with messages.
        """
        calls = [event for event in events if isinstance(event, Recorded)]
        if len(calls) < len(events):
            levels = LevelBuilder(recorder, (), grad, context, self.sympy_symbols())
            return _of_levels(levels, inputs, results, events)
        count = itertools.count()

        def fresh() -> str:
            return formal_value(next(count))

        head: list[BoundSymbol] = []
        pairs: list[tuple[Ref, Proxy]] = []
        for formal, parts in inputs:
            values: Sequence[Proxy] = (formal,)
            if isinstance(formal, TensorProxy) and formal.subclass is not None:
                head.append(flatten_call(formal, fresh))
                values = head[-1].flat_outs
            pairs += zip(parts, values, strict=True)
        formals = {p.name: p for p, _ in inputs}
        flat = [(parts, () if p.name in formals else self.sizes_of(p)) for p, parts in results]
        builder = self.builder(recorder, pairs, grad, context, checks or {})
        builder.defined = next(count)
        body = builder.build(tuple(flat), calls=calls)
        count = itertools.count(builder.defined)
        tail: list[BoundSymbol] = []
        found: list[Any] = []
        known: dict[str, Proxy] = {}
        for (p, _), (mine, sizes) in zip(results, body.outputs, strict=True):
            if p.name in formals:
                found.append(formals[p.name])
            elif isinstance(p, TensorProxy) and p.subclass is not None:
                if p.name not in known:
                    tail.append(
                        unflatten_call(p.replace(name=fresh(), requires_grad=False), mine, sizes)
                    )
                    known[p.name] = tail[-1].flat_outs[0]
                found.append(known[p.name])
            else:
                found.append(mine[0])
        inputs_ = tuple(p for p, _ in inputs)
        return Body(inputs_, (*head, *body.calls, *tail), None), found


def _of_levels(
    builder: LevelBuilder,
    inputs: Sequence[tuple[Proxy, Parts]],
    results: Sequence[tuple[Proxy, Parts]],
    events: Sequence[Event],
) -> tuple[Body, list[Any]]:
    """As `WrappedRun.body_of`, where ``events`` have operators on subclasses."""
    formals = {p.name: p for p, _ in inputs}
    given = [(value(p, parts), p) for p, parts in inputs]
    wanted = tuple(value(p, parts) for p, parts in results if p.name not in formals)
    body = builder.of_events(given, wanted, events)
    made = iter(body.outputs)
    found = [formals[p.name] if p.name in formals else next(made) for p, _ in results]
    return body, found


def _is_composite(called: Called, events: Sequence[Event]) -> bool:
    """True if ``events`` are operators on subclasses that autograd may differentiate one by one."""
    if not all(isinstance(event, Whole) and event.facts.builtin for event in events):
        return False
    return not runs_python(tensor for _, tensor in called.tensors)


def shared(
    outputs: Sequence[torch.Tensor], arguments: Mapping[int, torch.Tensor]
) -> tuple[Alias, ...]:
    """Aliases of ``outputs`` with ``arguments`` and each other, as whole tensors.

    Views of what others hold are no views to autograd; a tensor of a subclass may be one to it, and
    count writes with what it is of, though it holds memory of its own.
    """
    found = []
    for alias in alias_facts(outputs, arguments):
        if alias.kind != "internal":
            found.append(alias)
            continue
        base = outputs[alias.output]._base
        viewed = (i for i, t in arguments.items() if base is t or base is t._base)
        found += [Alias(alias.output, "arg", i) for i in itertools.islice(viewed, 1)]
    return tuple(found)

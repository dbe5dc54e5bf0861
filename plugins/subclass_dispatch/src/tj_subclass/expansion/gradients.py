"""Derived gradients of calls on tensor subclasses.

PyTorch's autograd differentiates the call as one on the subclasses: its formulas run operators of
these, which call dense ones in turn. So operators that have no derivative may stand inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tj_core.extend import (
    NO_TAGS,
    PLAIN_CONTEXT,
    Effects,
    Proxy,
    TensorProxy,
    formal_input,
    formal_value,
    leaves,
)
from tj_torch.extend import (
    Derivation,
    Expansion,
    Slot,
    is_symbolic,
    number_text,
    surroundings,
    tensor_proxy,
)
from tj_torch.internal import (
    CannotExpand,
    Recorder,
    Ref,
    Run,
    Saving,
    count_edges,
    default_tangent,
    gradients_of,
    known_sizes,
    missing_symbols,
    value_proxy,
    without_dispatch_modes,
)

from tj_subclass.expansion.flattening import symbols_of_layout
from tj_subclass.expansion.levels import Event, live_events, refs_in
from tj_subclass.expansion.run import Called, Parts, WrappedRun, shared

__all__ = ["wrapped_derivation"]


def wrapped_derivation(
    run: Run, wanted: Mapping[Slot, TensorProxy] | None, create_graph: bool
) -> Derivation:
    """Derive the gradient of the call of ``run``; arguments as those of `derive`.

    :raises CannotExpand: if the call or its backward is not for a `WrappedRun`.
    """
    assert isinstance(run, WrappedRun)
    if create_graph:
        raise CannotExpand("a gradient of a tensor subclass that is differentiated again")
    return _Differentiation(run, wanted).derivation()


@dataclass
class _Differentiation:
    run: WrappedRun
    wanted: Mapping[Slot, TensorProxy] | None

    def derivation(self) -> Derivation:
        run = self.run
        recorder = run.recorder()
        with surroundings(run.grad, run.rest):
            run.wrap(recorder)
            inputs = {n: t for n, t in run.leaves.items() if t.requires_grad}
            # Modes are of a thread: in one of the engine's the backward would run unrecorded.
            with torch.autograd.set_multithreading_enabled(False), run.modes(recorder):
                called = run.called(recorder)
                if called.after:
                    raise CannotExpand("a gradient of a write to a tensor subclass")
                middle = len(recorder.calls)
                sources = self.sources(called)
                tangents = {s: self.tangent(recorder, s, t) for s, t in sources.items()}
                saving = Saving.of(sources.values())
                given = [tensor for tensor, _, _ in tangents.values()]
                found = gradients_of([*sources.values()], [*inputs.values()], given)
                self.check_writes(recorder, called)
                edges = count_edges(sources.values(), inputs)
                parts = {
                    n: (g, run.refs_of(recorder, g))
                    for n, g in zip(inputs, found, strict=True)
                    if g is not None
                }
        made = run.on_levels(
            lambda whole: self.described(recorder, called, middle, tangents, parts, whole)
        )
        repeated = (run.arguments[n].index for n, count in edges.items() if count > 1)
        once = bool(parts) and saving.released()
        return replace(made, repeated=tuple(sorted(repeated)), once=once)

    def sources(self, called: Called) -> dict[Slot, torch.Tensor]:
        """Results that may have a tangent, each object once."""
        found: dict[Slot, torch.Tensor] = {}
        seen: set[int] = set()
        for j, tensor in called.tensors:
            if id(tensor) not in seen and tensor.requires_grad:
                found[Slot("out", j)] = tensor
            seen.add(id(tensor))
        if self.wanted is None:
            return found
        run = self.run
        found |= {Slot("arg", run.arguments[n].index): t for n, t in run.leaves.items()}
        return {slot: found[slot] for slot in self.wanted if slot in found}

    def tangent(
        self, recorder: Recorder, slot: Slot, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, TensorProxy, Parts]:
        """A tangent of ``tensor``, of its type, with its metadata and parts."""
        proxy = None if self.wanted is None else self.wanted[slot]
        if proxy is None or not known_sizes(proxy, self.run.symbols):
            like = tensor_proxy("tangent", tensor).replace(requires_grad=False)
            proxy = like if like.subclass is not None else default_tangent(tensor)
        with without_dispatch_modes():
            made, parts = self.run.made(recorder, proxy)
        return made, proxy, parts

    def check_writes(self, recorder: Recorder, called: Called) -> None:
        """Check that the backward wrote to no argument or result of the forward.

        :raises CannotExpand: if it has not.
        """
        run = self.run
        known = [(t, run.parts[n]) for n, t in run.wrapped.items()]
        known += [(t, called.parts[j]) for j, t in called.tensors]
        if any(run.refs_of(recorder, tensor) != parts for tensor, parts in known):
            raise CannotExpand("its backward writes, and a tensor subclass is here")

    # ------------------------------------------------------------------ describing

    def described(
        self,
        recorder: Recorder,
        called: Called,
        middle: int,
        tangents: Mapping[Slot, tuple[torch.Tensor, TensorProxy, Parts]],
        found: Mapping[str, tuple[torch.Tensor, Parts]],
        whole: bool,
    ) -> Derivation:
        run = self.run
        before = run.events(recorder, 0, middle, whole=whole)
        after = run.events(recorder, middle, whole=whole)
        wanted = [ref for _, parts in found.values() for ref in parts]
        live = live_events(after, wanted, keep_draws=False)
        made = {r for event in live for r in refs_in(event.outputs)}
        made.update(ref for _, _, parts in tangents.values() for ref in parts)
        made.update(map(Ref, recorder.constants))
        read = [*refs_in([(event.args, event.kwargs) for event in live]), *wanted]
        needed = [ref for ref in dict.fromkeys(read) if ref not in made]
        where = self.places(called)
        kept = [ref for ref in needed if ref not in where]
        saved = sorted({where[r] for r in needed if r in where})
        saved += [Slot("intermediate", i) for i in range(len(kept))]
        forward = run.described(recorder, called, before, kept)
        outputs, intermediates = forward.outputs if kept else (forward.outputs, ())
        if not kept:
            body = forward.body
            assert body is not None
            body = replace(body, outputs=(body.outputs, ()))
            forward = replace(forward, outputs=(forward.outputs, ()), body=body)
        given = self.inputs(called, outputs, saved, kept, recorder)
        targets = [(proxy, parts) for _, proxy, parts in tangents.values()]
        numbers = self.numbers(recorder, live, found, [*given, *targets], outputs)
        for name in numbers:
            number = run.size(name)
            given.append((value_proxy("", number), (recorder.define(number),)))
        given += targets
        tensors = [self.tensor(called, slot) for slot in saved] + [None] * len(numbers)
        tensors += [tensor for tensor, _, _ in tangents.values()]
        at = {i: t for i, t in enumerate(tensors) if t is not None}
        backward = self.backward(recorder, given, live, found, at)
        return Derivation(
            forward,
            tuple(p.replace(name=formal_value(i)) for i, p in enumerate(intermediates)),
            tuple(saved),
            tuple(tangents),
            backward,
            tuple(run.arguments[n].index for n in found),
            numbers=numbers,
        )

    def numbers(
        self,
        recorder: Recorder,
        live: Sequence[Event],
        found: Mapping[str, tuple[torch.Tensor, Parts]],
        given: Sequence[tuple[Proxy, Parts]],
        outputs: Any,
    ) -> tuple[str, ...]:
        """Symbols that the backward reads, and that no size of the values ``given`` tells."""
        read = leaves([(call.args, call.kwargs) for call in live])
        texts = [number_text(x) for x in read if is_symbolic(x)]
        for gradient, _ in found.values():
            texts += [n.name for n in symbols_of_layout(tensor_proxy("", gradient))]
        refs = [ref for _, parts in given for ref in parts]
        known = outputs, tuple(self.run.formals.values())
        return missing_symbols(self.run, recorder, texts, refs, known)

    def places(self, called: Called) -> dict[Ref, Slot]:
        """Map each dense value to the argument or result that holds it."""
        run = self.run
        where: dict[Ref, Slot] = {}
        for name, parts in run.parts.items():
            for ref in parts:
                where.setdefault(ref, Slot("arg", run.arguments[name].index))
        for j, _ in called.tensors:
            for ref in called.parts[j]:
                where.setdefault(ref, Slot("out", j))
        return where

    def inputs(
        self,
        called: Called,
        outputs: Any,
        saved: Sequence[Slot],
        kept: Sequence[Ref],
        recorder: Recorder,
    ) -> list[tuple[Proxy, Parts]]:
        """Values of the forward that the backward takes, with their parts."""
        run = self.run
        names = {a.index: n for n, a in run.arguments.items()}
        results = [p for p in leaves(outputs) if isinstance(p, Proxy)]
        found: list[tuple[Proxy, Parts]] = []
        for slot in saved:
            if slot.kind == "arg":
                found.append((run.formals[names[slot.index]], run.parts[names[slot.index]]))
            elif slot.kind == "out":
                found.append((results[slot.index], called.parts[slot.index]))
            else:
                ref = kept[slot.index]
                found.append((value_proxy("", recorder.values[ref.index]), (ref,)))
        return found

    def tensor(self, called: Called, slot: Slot) -> torch.Tensor | None:
        """The argument or result at ``slot``; None for an intermediate value."""
        if slot.kind == "out":
            return called.values[slot.index]  # type: ignore[no-any-return]
        at = {self.run.arguments[n].index: tensor for n, tensor in self.run.wrapped.items()}
        return at.get(slot.index) if slot.kind == "arg" else None

    def backward(
        self,
        recorder: Recorder,
        given: Sequence[tuple[Proxy, Parts]],
        live: Sequence[Event],
        found: Mapping[str, tuple[torch.Tensor, Parts]],
        tensors: Mapping[int, torch.Tensor],
    ) -> Expansion:
        """The backward of ``live`` calls over the values in ``given``, with the tensors there."""
        inputs = [
            (p.replace(name=formal_input(i), tags=NO_TAGS), parts)
            for i, (p, parts) in enumerate(given)
        ]
        pairs = enumerate(found.values())
        results = [(tensor_proxy(formal_value(i), g), parts) for i, (g, parts) in pairs]
        body, values = self.run.body_of(recorder, inputs, results, live, False, PLAIN_CONTEXT)
        body = replace(body, outputs=tuple(values))
        ordered = dict.fromkeys(r for call in body.calls for r in call.effects.ordered)
        gradients = [g for g, _ in found.values()]
        return Expansion(
            tuple(p for p, _ in results),
            Effects(aliases=shared(gradients, tensors), ordered=tuple(ordered)),
            body,
            "COMPOSITE",
            recorder.captured,
        )

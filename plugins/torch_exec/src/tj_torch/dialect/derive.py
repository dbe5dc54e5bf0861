"""Derived gradients: PyTorch's own autograd of one call, recorded on fake tensors.

The call runs as in `tj_torch.dialect.expansion`, then ``torch.autograd.grad`` runs on its outputs
with a fake tangent for each. What was recorded before that is the forward, what comes after the
backward, and the forward's values that the live backward reads are those to save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from tj_core.proxy import TensorProxy, contiguous_strides
from tj_core.symbol import PLAIN_CONTEXT, Context, Effects
from tj_core.tags import NO_TAGS
from tj_core.tree import leaves

from tj_torch.dialect import private
from tj_torch.dialect.arguments import make_fake
from tj_torch.dialect.autogradinfo import count_edges
from tj_torch.dialect.body import BodyBuilder, alias_facts, live_calls, references
from tj_torch.dialect.context import surroundings
from tj_torch.dialect.convert import tensor_proxy
from tj_torch.dialect.expansion import Expander, Expansion, Run, Traced
from tj_torch.dialect.recorder import Recorded, Recorder, Ref

__all__ = ["Derivation", "Slot", "derive"]


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A value of a differentiated call.

    ``arg``: an argument proxy, by flat index; ``out``: an output proxy, by flat index;
    ``update``: the new value of a mutated argument; ``hidden``: an intermediate value.

    An argument's tangent is the gradient that it has from elsewhere, to which that of this call is
    added, in the order in which PyTorch adds.
    """

    kind: Literal["arg", "out", "update", "hidden"]
    index: int


@dataclass(frozen=True)
class Derivation:
    """A call with its gradient.

    ``forward`` has as outputs the pair of the call's outputs and the ``hidden`` values that only
    the backward needs. ``backward`` takes the values of ``saved``, then the tangents of
    ``tangents``; its outputs are the gradients of the arguments in ``gradients``, by flat index,
    each with the metadata of its argument. An argument that ``gradients`` lacks has none.
    ``repeated`` are those whose gradient is a sum.
    """

    forward: Expansion
    hidden: tuple[TensorProxy, ...]
    saved: tuple[Slot, ...]
    tangents: tuple[Slot, ...]
    backward: Expansion
    gradients: tuple[int, ...]
    repeated: tuple[int, ...] = ()

    @property
    def captured(self) -> bool:
        """Whether a body holds a tensor which is no argument (one of a closure)."""
        return self.forward.captured


def derive(
    expander: Expander,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    context: Context = PLAIN_CONTEXT,
    *,
    tangents: Mapping[Slot, TensorProxy] | None = None,
    create_graph: bool = False,
) -> Derivation:
    """The gradient of ``fn(*args, **kwargs)``, which runs under ``context``.

    ``tangents`` are the outputs and updates that have one, with its metadata: all that can have
    one, laid out like the values themselves, if not given. ``create_graph`` records a backward
    that can be differentiated again.

    :raises CannotExpand: if the call works, but not on fake tensors.
    :raises ExpansionError: if PyTorch raises for these arguments.
    """

    def run(run: Run) -> Derivation:
        return _Differentiation(run, tangents, create_graph).derivation()

    return expander.run(run, fn, args, kwargs, context)


@dataclass
class _Differentiation:
    """One run of one call, forward and backward."""

    run: Run
    wanted: Mapping[Slot, TensorProxy] | None
    create_graph: bool

    def derivation(self) -> Derivation:
        run = self.run
        recorder = Recorder(run.table, hidden_writes=run.decompose)
        with surroundings(run.grad, run.rest):
            run.wrap(recorder)
            leaves_ = {n: t for n, t in run.leaves.items() if t.requires_grad}
            with (
                torch.autograd.set_multithreading_enabled(False),
                run.modes(recorder),
            ):
                traced = run.trace(recorder)
                middle = len(recorder.calls)
                sources = self._differentiable(traced)
                tangents = {s: self._tangent(recorder, s, t) for s, t in sources.items()}
                gradients = self._gradients(sources, tangents, leaves_)
                edges = count_edges(sources.values(), leaves_)
                found = {
                    n: recorder.ref(private.unwrapped(g))
                    for n, g in zip(leaves_, gradients, strict=True)
                    if g is not None
                }
        made = self._describe(recorder, traced, middle, sources, tangents, found)
        repeated = (self.run.arguments[n].index for n, count in edges.items() if count > 1)
        return replace(made, repeated=tuple(sorted(repeated)))

    def _differentiable(self, traced: Traced) -> dict[Slot, torch.Tensor]:
        """The values that may have a tangent, each object once."""
        run = self.run
        args = {id(w): run.arguments[n].index for n, w in run.wrapped.items()}
        mutated = {run.arguments[n].index for n in traced.mutated}
        found: dict[Slot, torch.Tensor] = {}
        seen: set[int] = set()
        for j, tensor in enumerate(traced.tensors):
            if id(tensor) in seen or args.get(id(tensor)) in mutated:
                continue
            seen.add(id(tensor))
            found[Slot("out", j)] = tensor
        for name in traced.mutated:
            found[Slot("update", run.arguments[name].index)] = run.wrapped[name]
        known = {s: t for s, t in found.items() if t.requires_grad}
        if self.wanted is None:
            return known
        known |= {Slot("arg", run.arguments[n].index): t for n, t in run.leaves.items()}
        return {slot: known[slot] for slot in self.wanted if slot in known}

    def _tangent(
        self, recorder: Recorder, slot: Slot, tensor: torch.Tensor
    ) -> tuple[Ref, torch.Tensor, TensorProxy]:
        given = self.wanted[slot] if self.wanted is not None else default_tangent(tensor)
        with private.paused_functionalization(), private.without_modes():
            fake = make_fake(self.run.mode, given)
        ref = recorder.define(fake)
        wrapped = private.functionalized(fake)
        if self.create_graph:
            wrapped.requires_grad_()
        private.deny_data_pointer(wrapped)
        return ref, wrapped, given

    def _gradients(
        self,
        sources: Mapping[Slot, torch.Tensor],
        tangents: Mapping[Slot, tuple[Ref, torch.Tensor, TensorProxy]],
        leaves_: Mapping[str, torch.Tensor],
    ) -> tuple[torch.Tensor | None, ...]:
        if not sources or not leaves_:
            return (None,) * len(leaves_)
        return torch.autograd.grad(
            list(sources.values()),
            list(leaves_.values()),
            [wrapped for _, wrapped, _ in tangents.values()],
            allow_unused=True,
            create_graph=self.create_graph,
        )

    # ------------------------------------------------------------------ describing

    def _describe(
        self,
        recorder: Recorder,
        traced: Traced,
        middle: int,
        sources: Mapping[Slot, torch.Tensor],
        tangents: Mapping[Slot, tuple[Ref, torch.Tensor, TensorProxy]],
        found: Mapping[str, Ref],
    ) -> Derivation:
        run = self.run
        before, after = recorder.calls[:middle], recorder.calls[middle:]
        plain = run.describe(recorder, traced, before)
        live = live_calls(after, found.values(), keep_draws=False)
        known = {*run.refs.values(), *references(traced.inner)}
        views = _views_read(recorder, before, live, known)
        live = [*(replace(v, grad=self.create_graph) for v in views), *live]
        made = {r for call in live for r in references(call.outputs)}
        made.update(ref for ref, _, _ in tangents.values())
        made.update(map(Ref, recorder.constants))
        read = [*references([(call.args, call.kwargs) for call in live]), *found.values()]
        needed = [ref for ref in dict.fromkeys(read) if ref not in made]
        slots, proxies, hidden = self._saved(recorder, traced, plain, needed)
        order = sorted(range(len(needed)), key=lambda i: slots[i])
        inputs = [(needed[i], proxies[i]) for i in order]
        inputs += [(ref, given) for ref, _, given in tangents.values()]
        secret = [needed[i] for i in hidden]
        forward = self._augmented(recorder, traced, plain, before, secret)
        return Derivation(
            forward,
            tuple(proxies[i] for i in hidden),
            tuple(slots[i] for i in order),
            tuple(sources),
            self._backward(recorder, live, inputs, found),
            tuple(run.arguments[n].index for n in found),
        )

    def _augmented(
        self,
        recorder: Recorder,
        traced: Traced,
        plain: Expansion,
        calls: Sequence[Recorded],
        hidden: Sequence[Ref],
    ) -> Expansion:
        """The call with its hidden values as further outputs."""
        run = self.run
        values = recorder.values
        arguments = {a.index: values[run.refs[n].index] for n, a in run.arguments.items()}
        outputs = [values[r.index] for r in references(traced.inner)]
        first = len(outputs)
        secret = [values[r.index] for r in hidden]
        shared = alias_facts([*outputs, *secret], arguments)
        aliases = [*plain.effects.aliases, *(a for a in shared if a.output >= first)]
        count = len(outputs)
        proxies = tuple(tensor_proxy(f"_{count + i}", t) for i, t in enumerate(secret))
        return replace(
            plain,
            outputs=(plain.outputs, proxies),
            effects=replace(plain.effects, aliases=tuple(aliases)),
            body=run.body(recorder, traced, calls, hidden),
        )

    def _backward(
        self,
        recorder: Recorder,
        live: Sequence[Recorded],
        inputs: Sequence[tuple[Ref, TensorProxy]],
        found: Mapping[str, Ref],
    ) -> Expansion:
        values = recorder.values
        named = [(ref, p.replace(name=f"a{i}", tags=NO_TAGS)) for i, (ref, p) in enumerate(inputs)]
        body = BodyBuilder(recorder, named, self.create_graph, PLAIN_CONTEXT).build(
            tuple(found.values()), calls=live
        )
        gradients = [values[ref.index] for ref in found.values()]
        arguments = {i: values[ref.index] for i, (ref, _) in enumerate(inputs)}
        ordered = (r for call in body.calls for r in call.effects.ordered)
        return Expansion(
            tuple(tensor_proxy(f"_{i}", g) for i, g in enumerate(gradients)),
            Effects(
                aliases=alias_facts(gradients, arguments), ordered=tuple(dict.fromkeys(ordered))
            ),
            body,
            "COMPOSITE",
            recorder.captured,
        )

    def _saved(
        self, recorder: Recorder, traced: Traced, expansion: Expansion, needed: list[Ref]
    ) -> tuple[list[Slot], list[TensorProxy], list[int]]:
        """Where each needed value is found, its metadata, and which of them are hidden."""
        run = self.run
        known: dict[Ref, tuple[Slot, TensorProxy]] = {}
        for name, argument in run.arguments.items():
            known[run.refs[name]] = Slot("arg", argument.index), argument.formal
        proxies = [p for p in leaves(expansion.outputs) if isinstance(p, TensorProxy)]
        for j, ref in enumerate(references(traced.inner)):
            known.setdefault(ref, (Slot("out", j), proxies[j]))
        slots: list[Slot] = []
        metadata: list[TensorProxy] = []
        hidden: list[int] = []
        for i, ref in enumerate(needed):
            if ref not in known:
                proxy = tensor_proxy(f"_{len(hidden)}", recorder.values[ref.index])
                known[ref] = Slot("hidden", len(hidden)), proxy
                hidden.append(i)
            slot, proxy = known[ref]
            slots.append(slot)
            metadata.append(proxy)
        return slots, metadata, hidden


def _views_read(
    recorder: Recorder, calls: Sequence[Recorded], live: Sequence[Recorded], known: set[Ref]
) -> list[Recorded]:
    """The views in ``calls`` that ``live`` calls read, in order: the backward makes them again.

    A view costs nothing to make and nothing to keep, and a forward that need not return it is the
    call that the user wrote.
    """
    wanted = set(references([(call.args, call.kwargs) for call in live])) - known
    found = []
    for call in reversed(calls):
        made = set(references(call.outputs))
        if wanted.isdisjoint(made) or not _is_view(recorder, call):
            continue
        found.append(call)
        wanted |= set(references((call.args, call.kwargs))) - known
    return found[::-1]


def _is_view(recorder: Recorder, call: Recorded) -> bool:
    """Whether all that ``call`` returns shares storage with what it is given."""
    values = recorder.values
    given = {private.storage_id(values[r.index]) for r in references((call.args, call.kwargs))}
    return all(private.storage_id(values[r.index]) in given for r in references(call.outputs))


def default_tangent(tensor: torch.Tensor) -> TensorProxy:
    """A tangent laid out like ``tensor`` where that is dense, else contiguous."""
    proxy = tensor_proxy("tangent", tensor).replace(requires_grad=False, flags=())
    if private.is_dense(tensor):
        return proxy
    return proxy.replace(strides=contiguous_strides(proxy.shape) or ())

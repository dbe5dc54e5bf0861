"""Derive gradients: record PyTorch's own autograd of one call on fake tensors.

The call runs as in `expander`, then ``torch.autograd.grad`` runs on its outputs with a fake
tangent for each. Operators recorded before that are the forward, later ones the backward; values of
the forward that the live backward reads are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    PLAIN_CONTEXT,
    Context,
    Effects,
    TensorProxy,
    formal_input,
    formal_value,
    leaves,
    live_items,
)

from tj_torch.ops.context.entering import surroundings
from tj_torch.ops.errors import WRITES_BACK, CannotExpand
from tj_torch.ops.expansion.arguments import make_fake
from tj_torch.ops.expansion.autograd_info import (
    Saving,
    count_edges,
    gradients_of,
    python_nodes,
)
from tj_torch.ops.expansion.body import alias_facts, live_calls, placed_tensors, references
from tj_torch.ops.expansion.derivation import Derivation, Slot, default_tangent, missing_symbols
from tj_torch.ops.expansion.expansion import Expansion
from tj_torch.ops.expansion.recorder import Recorded, Recorder, Ref
from tj_torch.ops.facts.python_backwards import changing
from tj_torch.ops.sizes.program import Sizes, known_sizes
from tj_torch.ops.sizes.shape_env import is_symbolic, number_text
from tj_torch.ops.values.convert import tensor_proxy, value_proxy
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import without_dispatch_modes

if TYPE_CHECKING:
    from tj_torch.ops.expansion.expander import Expander
    from tj_torch.ops.expansion.kinds import TensorKind
    from tj_torch.ops.expansion.run import Run, Traced

__all__ = ["Derivation", "Slot", "derive"]


def derive(
    expander: Expander,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    context: Context = PLAIN_CONTEXT,
    *,
    tangents: Mapping[Slot, TensorProxy] | None = None,
    create_graph: bool = False,
    sizes: Sizes | None = None,
) -> Derivation:
    """Derive the gradient of ``fn(*args, **kwargs)``, which runs under ``context``.

    ``tangents`` are the outputs and updates that have a tangent, with its metadata; if not given,
    all differentiable ones, with tangents laid out like the values. ``create_graph`` records a
    backward that can be differentiated again. ``sizes`` has the symbols in the arguments' metadata.

    :raises CannotExpand: if the call works, but not on fake tensors.
    :raises ExpansionError: if PyTorch raises for these arguments.
    """

    def run(run: Run, kind: TensorKind | None) -> Derivation:
        if kind is not None:
            return kind.derive(run, tangents, create_graph)
        return _Differentiation(run, tangents, create_graph).derivation()

    given = (tangents or {}).values()
    return expander.run(run, fn, args, kwargs, context, sizes, beside=given)


@dataclass
class _Differentiation:
    """Forward and backward of one run of a call."""

    run: Run
    wanted: Mapping[Slot, TensorProxy] | None
    create_graph: bool

    def derivation(self) -> Derivation:
        run = self.run
        recorder = run.recorder()
        with surroundings(run.grad, run.rest):
            run.wrap(recorder)
            leaves_ = {n: t for n, t in run.leaves.items() if t.requires_grad}
            with (
                # Modes are of a thread: in one of the engine's the backward would run unrecorded.
                torch.autograd.set_multithreading_enabled(False),
                run.modes(recorder),
            ):
                traced = run.trace(recorder)
                middle = len(recorder.calls)
                sources = self._differentiable(traced)
                if reason := changing(python_nodes(sources.values())):
                    raise CannotExpand(f"its backward is known when it runs: {reason}")
                tangents = {s: self._tangent(recorder, s, t) for s, t in sources.items()}
                saving = Saving.of(sources.values())
                gradients = gradients_of(
                    tuple(sources.values()),
                    tuple(leaves_.values()),
                    [wrapped for _, wrapped in tangents.values()],
                    create_graph=self.create_graph,
                )
                self._check_writes(recorder, traced)
                edges = count_edges(sources.values(), leaves_)
                found = {
                    n: recorder.ref(private.unwrapped(g))
                    for n, g in zip(leaves_, gradients, strict=True)
                    if g is not None
                }
        made = self._describe(recorder, traced, middle, sources, tangents, found)
        # More than one edge: autograd adds contributions to such an argument one by one.
        repeated = (self.run.arguments[n].index for n, count in edges.items() if count > 1)
        once = not self.create_graph and bool(found) and saving.released()
        return replace(made, repeated=tuple(sorted(repeated)), once=once)

    def _differentiable(self, traced: Traced) -> dict[Slot, torch.Tensor]:
        """Values that may have a tangent, each object once."""
        run = self.run
        args = {id(w): run.arguments[n].index for n, w in run.wrapped.items()}
        mutated = {run.arguments[n].index for n in traced.mutated}
        found: dict[Slot, torch.Tensor] = {}
        seen: set[int] = set()
        for j, tensor in placed_tensors(traced.values):
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
    ) -> tuple[Ref, torch.Tensor]:
        given = self.wanted[slot] if self.wanted is not None else None
        with private.paused_functionalization(), without_dispatch_modes():
            fake = self._fake(tensor, given)
        ref = recorder.define(fake)
        wrapped = private.functionalized(fake)
        if self.create_graph:
            wrapped.requires_grad_()
        private.deny_data_pointer(wrapped)
        return ref, wrapped

    def _fake(self, tensor: torch.Tensor, given: TensorProxy | None) -> torch.Tensor:
        """Fake tangent of ``tensor`` with metadata ``given``, else those of `default_tangent`."""
        if given is not None and known_sizes(given, self.run.symbols):
            return make_fake(self.run.mode, given, self.run.size)
        return make_fake(self.run.mode, default_tangent(tensor), self.run.size)

    def _check_writes(self, recorder: Recorder, traced: Traced) -> None:
        """Check that the backward has written neither arguments nor outputs of the forward.

        :raises CannotExpand: if it has.
        """

        def now(tensor: torch.Tensor) -> Ref:
            return recorder.ref(private.unwrapped(tensor))

        outputs = zip(references(traced.inner), placed_tensors(traced.values), strict=False)
        before = [(ref, self.run.wrapped[name]) for name, ref in traced.after.items()]
        if any(now(t) != ref for ref, t in (*before, *((ref, t) for ref, (_, t) in outputs))):
            raise CannotExpand(WRITES_BACK)

    # ------------------------------------------------------------------ describing

    def _describe(
        self,
        recorder: Recorder,
        traced: Traced,
        middle: int,
        sources: Mapping[Slot, torch.Tensor],
        tangents: Mapping[Slot, tuple[Ref, torch.Tensor]],
        found: Mapping[str, Ref],
    ) -> Derivation:
        run = self.run
        before, after = recorder.calls[:middle], recorder.calls[middle:]
        plain = run.describe(recorder, traced, before)
        live = live_calls(after, found.values(), references, keep_draws=False)
        known = {*run.refs.values(), *references(traced.inner)}
        views = _views_read(recorder, before, live, known)
        live = [*(replace(v, grad=self.create_graph) for v in views), *live]
        given = [ref for ref, _ in tangents.values()]
        made = {r for call in live for r in references(call.outputs)}
        made.update(given, map(Ref, recorder.constants))
        read = [*references([(call.args, call.kwargs) for call in live]), *found.values()]
        needed = [ref for ref in dict.fromkeys(read) if ref not in made]
        slots, intermediates = self._saved(traced, needed)
        visible = self._visible(traced, plain)
        order = sorted(range(len(needed)), key=lambda i: slots[i])
        kept = [needed[i] for i in intermediates]
        saved = [needed[i] for i in order]
        backward, numbers = self._backward(recorder, live, saved, given, found, visible)
        # Without intermediates the forward stays the call itself, and draws as in eager.
        if kept and any(self._draws_elsewhere(recorder, call) for call in before):
            raise CannotExpand("its body draws random numbers in another order than the call")
        forward = self._augmented(recorder, traced, plain, before, kept)
        return Derivation(
            forward,
            tuple(
                value_proxy(formal_value(i), recorder.values[r.index]) for i, r in enumerate(kept)
            ),
            tuple(slots[i] for i in order),
            tuple(sources),
            backward,
            tuple(run.arguments[n].index for n in found),
            numbers=numbers,
        )

    def _draws_elsewhere(self, recorder: Recorder, call: Recorded) -> bool:
        """Test if a call that draws in place draws in another order in a body.

        Functionalization draws into a new, contiguous tensor, and kernels draw in the order of
        memory.
        """
        if not call.draws:
            return False
        given, made = (list(references(tree)) for tree in (call.args, call.outputs))
        tensors = [recorder.values[r.index] for r in (*given[:1], *made[:1])]
        strides = [t.stride() for t in tensors if isinstance(t, torch.Tensor)]
        return len(strides) == 2 and strides[0] != strides[1]

    def _augmented(
        self,
        recorder: Recorder,
        traced: Traced,
        plain: Expansion,
        calls: Sequence[Recorded],
        intermediates: Sequence[Ref],
    ) -> Expansion:
        """Expansion of the call with its intermediates as further outputs."""
        run = self.run
        values = recorder.values
        arguments = {run.arguments[n].index: values[run.refs[n].index] for n in run.wrapped}
        refs = references(traced.inner)
        outputs = [
            values[next(refs).index] if isinstance(v, torch.Tensor) else v for v in traced.values
        ]
        first = len(outputs)
        kept = [values[r.index] for r in intermediates]
        shared = alias_facts([*outputs, *kept], arguments)
        aliases = [*plain.effects.aliases, *(a for a in shared if a.output >= first)]
        proxies = tuple(value_proxy(formal_value(first + i), t) for i, t in enumerate(kept))
        return replace(
            plain,
            outputs=(plain.outputs, proxies),
            effects=replace(plain.effects, aliases=tuple(aliases)),
            body=run.body(recorder, traced, calls, intermediates),
        )

    def _backward(
        self,
        recorder: Recorder,
        live: Sequence[Recorded],
        saved: Sequence[Ref],
        tangents: Sequence[Ref],
        found: Mapping[str, Ref],
        visible: Mapping[Ref, Any],
    ) -> tuple[Expansion, tuple[str, ...]]:
        """Expansion of the backward of ``live`` calls, and the symbols it takes as arguments."""
        values, run = recorder.values, self.run
        sizes = [x for call in live for x in leaves((call.args, call.kwargs)) if is_symbolic(x)]
        texts, known = map(number_text, sizes), [*saved, *tangents]
        numbers = missing_symbols(run, recorder, texts, known, tuple(visible.values()))
        refs = [*saved, *(recorder.define(run.size(name)) for name in numbers), *tangents]
        named = []
        for i, ref in enumerate(refs):
            proxy = visible.get(ref) or value_proxy("", values[ref.index])
            named.append((ref, proxy.replace(name=formal_input(i))))
        body = run.builder(recorder, named, self.create_graph, PLAIN_CONTEXT, {}).build(
            tuple(found.values()), calls=live
        )
        gradients = [values[ref.index] for ref in found.values()]
        tensors = {i: values[ref.index] for i, ref in enumerate(refs)}
        arguments = {i: t for i, t in tensors.items() if isinstance(t, torch.Tensor)}
        ordered = (r for call in body.calls for r in call.effects.ordered)
        expansion = Expansion(
            tuple(tensor_proxy(formal_value(i), g) for i, g in enumerate(gradients)),
            Effects(
                aliases=alias_facts(gradients, arguments), ordered=tuple(dict.fromkeys(ordered))
            ),
            body,
            "COMPOSITE",
            recorder.captured,
        )
        return expansion, numbers

    def _visible(self, traced: Traced, plain: Expansion) -> dict[Ref, Any]:
        """Proxies of arguments and results, with ``requires_grad``."""
        run = self.run
        refs = references(traced.inner)
        outs = (p for p in leaves(plain.outputs) if isinstance(p, TensorProxy))
        found = dict(zip(refs, outs, strict=True))
        return found | {run.refs[n]: run.formals[n] for n in run.arguments}

    def _saved(self, traced: Traced, needed: list[Ref]) -> tuple[list[Slot], list[int]]:
        """Slot of each needed value, and the indices of those that are intermediates."""
        run = self.run
        known = {run.refs[name]: Slot("arg", a.index) for name, a in run.arguments.items()}
        refs = references(traced.inner)
        for j, _ in placed_tensors(traced.values):
            known.setdefault(next(refs), Slot("out", j))
        slots: list[Slot] = []
        intermediates: list[int] = []
        for i, ref in enumerate(needed):
            if ref not in known:
                known[ref] = Slot("intermediate", len(intermediates))
                intermediates.append(i)
            slots.append(known[ref])
        return slots, intermediates


def _views_read(
    recorder: Recorder, calls: Sequence[Recorded], live: Sequence[Recorded], known: set[Ref]
) -> list[Recorded]:
    """Views in ``calls`` that ``live`` calls read, in order; the backward makes them again.

    A view costs nothing to make, and a forward that returns no intermediates stays the user's own
    call.
    """

    def read(call: Recorded, wanted: set[Ref]) -> set[Ref] | None:
        if wanted.isdisjoint(references(call.outputs)) or not _is_view(recorder, call):
            return None
        return set(references((call.args, call.kwargs))) - known

    wanted = set(references([(call.args, call.kwargs) for call in live])) - known
    return live_items(calls, wanted, read)


def _is_view(recorder: Recorder, call: Recorded) -> bool:
    """Test if all results of ``call`` share storage with its arguments."""

    def storages(tree: Any) -> list[int | None]:
        values = (recorder.values[r.index] for r in references(tree))
        return [private.storage_id(v) if isinstance(v, torch.Tensor) else None for v in values]

    given = set(storages((call.args, call.kwargs))) - {None}
    return given.issuperset(storages(call.outputs))

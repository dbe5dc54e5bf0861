"""Assembly of a forward and its backwards: the calls of `PassContext.assemble` for a joint trace.

They are made by the process that splits the trace, and by one that finds the halves on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tj_core.extend import PassRecord, TraceEditor
from tj_torch.extend import arrivals

from tj_autograd.joint.lookup import Lookup
from tj_autograd.run.arrivals import arrange
from tj_autograd.run.dependences import depended
from tj_autograd.run.differentiable import differentiable
from tj_autograd.run.graph_lifetime import frees
from tj_autograd.run.layouts import default_layout
from tj_autograd.run.reads import READS
from tj_autograd.run.variants import Variants
from tj_autograd.split.costs import Costs
from tj_autograd.split.decompositions import with_decompositions
from tj_autograd.split.deliveries import segments_of
from tj_autograd.split.halves import Halves, Part, split
from tj_autograd.split.ignored_tags import unheeded

if TYPE_CHECKING:
    from tj_core.extend import Outcome, PassContext, Program, Proxy, Trace

    from tj_autograd.joint.build import Layout
    from tj_autograd.joint.segments import Cut
    from tj_autograd.options import Options

__all__ = ["Splitting"]

STATIC = "STATIC_MEMORY_LOCATION"
"""Name of tj-torch's tag of parameters."""


@dataclass(frozen=True)
class _Facts:
    """Facts about the backwards of a program, one for each segment.

    ``depended`` are the values that the gradients depend on; ``frees`` is true if the backward
    frees the graph. ``order`` are the labels of the joint trace's calls, where there are several
    segments.
    """

    depended: tuple[frozenset[str], ...]
    frees: tuple[bool, ...]
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Splitting:
    """Splits the joint trace of ``functional``, and assembles the halves.

    ``joint`` makes the joint trace of the segments for tangents with another layout.
    """

    functional: Trace
    context: PassContext
    options: Options
    joint: Callable[[Trace, PassContext, Cut, Layout], Trace]

    @functools.cached_property
    def segments(self) -> Cut:
        """The segments: each is a node of PyTorch's autograd."""
        return segments_of(self.functional, Lookup.of(self.context).records)

    @functools.cached_property
    def costs(self) -> Costs:
        """Costs of recomputing calls."""
        return Costs.of(self.context)

    def split(self, joint: Trace, made: Trace) -> Outcome:
        """The forward of ``joint``, assembled with its backwards.

        ``made`` is the joint trace before it was lowered.
        """
        segments, whole = self.segments, self.decomposed(joint)
        halves = self.noted(self.halves(whole))
        count = range(len(halves.parts))
        gradients = [whole.outputs[1]] if segments.whole else whole.outputs[1]
        taken = [[p.name for p in segments.taken(i)] for i in count]
        reads = self.context.tables[READS]
        facts = _Facts(
            tuple(depended(whole, gradients[i], taken[i], reads) for i in count),
            tuple(frees(made, segments, i) for i in count),
            () if segments.whole else tuple(call.label for call in made.calls),
        )
        return self.assembled(halves, facts)

    def halves(
        self, joint: Trace, layout: Layout | None = None, within: frozenset[str] | None = None
    ) -> Halves:
        """The halves of the decomposed ``joint``; see `split`. Eager's order of gradients is kept.

        In that order hooks of parameters run, and DistributedDataParallel fills its buckets.
        """
        options = self.options
        made = split(
            joint, self.costs, options.memory_budget, within, self.segments, layout, options.prefer
        )
        parts = tuple(replace(p, gradients=self.arranged(p.gradients)) for p in made.parts)
        return replace(made, parts=parts)

    @functools.cached_property
    def leaves(self) -> dict[str, int]:
        """Inputs that are leaves, by the place of their gradient among those in eager.

        They are the parameters; in a program without, or where no transform reads their tag, all
        inputs.
        """
        inputs = self.functional.inputs
        static = {p.name for p in inputs if STATIC in p.tags} or {p.name for p in inputs}
        return {name: i for i, name in enumerate(arrivals(self.functional)) if name in static}

    def arranged(self, gradients: dict[str, Proxy]) -> dict[str, Proxy]:
        """The ``gradients`` of a segment, in an order in which autograd takes them as in eager."""
        named = {key: key.partition(".")[0] for key in gradients}
        places = {k: self.leaves[name] for k, name in named.items() if name in self.leaves}
        leaves = sorted(places, key=places.__getitem__)
        others = [key for key in gradients if key not in places]
        return {key: gradients[key] for key in (*arrange(leaves, bool(others)), *others)}

    def noted(self, halves: Halves) -> Halves:
        """``halves``; the forward's history has the tags that were not followed, with reasons."""
        forward = halves.forward
        found = tuple(unheeded(forward.calls, halves.saved, self.costs))
        if not found:
            return halves
        editor = TraceEditor(forward, self.context.tags)
        editor.append(*forward.calls)
        editor.changes += found
        record = PassRecord(self.context.name, self.context.plugin)
        return replace(halves, forward=editor.done(record))

    def decomposed(self, joint: Trace) -> Trace:
        """``joint`` with the decompositions that executors ask for."""
        return with_decompositions(joint, self.costs, self.context, merge=self.segments.whole)

    def restore(self, kept: dict[str, Any]) -> Outcome:
        """Assemble the halves that another process has kept on disk."""
        forward, outputs, roots, rest, saved, parts = kept["halves"]
        made = tuple(Part(*part) for part in parts)
        halves = Halves(forward, outputs, roots, rest, saved, made)
        depended = tuple(frozenset(names) for names in kept["depended"])
        return self.assembled(halves, _Facts(depended, kept["frees"], kept["order"]))

    def kept(self, halves: Halves, facts: _Facts) -> dict[str, Any]:
        """The payload for `restore`."""
        h = halves
        parts = tuple((p.backward, p.saved, p.tangents, p.gradients) for p in h.parts)
        return {
            "functional": self.functional,
            "halves": (h.forward, h.outputs, h.roots, h.rest, h.saved, parts),
            "depended": tuple(tuple(sorted(names)) for names in facts.depended),
            "frees": facts.frees,
            "order": facts.order,
        }

    def assembled(self, halves: Halves, facts: _Facts) -> Outcome:
        """The forward of ``halves``, with the function in which the halves run together."""
        order = {label: i for i, label in enumerate(facts.order)}

        def assemble(
            forward: Program, compile_later: Callable[[str, Trace], Program]
        ) -> Callable[..., Any]:
            count = range(len(halves.parts))
            made = [self.variants(halves, facts, i, compile_later) for i in count]
            run = differentiable(halves, forward.function, made, order)
            # Whoever compiles behind the program makes its backwards there.
            run.programs = [v for v in made if v.index not in v.cut.views]  # type: ignore[attr-defined]
            return run

        named = {
            self.segments.name(i): part.backward
            for i, part in enumerate(halves.parts)
            if i not in self.segments.views
        }
        flexible, kept = halves.flexible, self.kept(halves, facts)
        return self.context.assemble(
            halves.forward, named, assemble, boxed=True, flexible=flexible, kept=kept
        )

    def variants(
        self,
        halves: Halves,
        facts: _Facts,
        index: int,
        compile_later: Callable[[str, Trace], Program],
    ) -> Variants:
        """Make the backward programs of the segment at ``index``."""
        context, functional, segments = self.context, self.functional, self.segments
        dialects = Lookup.of(context).dialects
        sizes = dialects.sizes
        return Variants(
            halves,
            segments,
            index,
            compile_later,
            functional,
            lambda layout: self.joint(functional, context, segments, layout),
            lambda joint, layout, names: self.halves(self.decomposed(joint), layout, names),
            default=tuple(map(default_layout, halves.parts[index].tangents)),
            within=lambda: dialects.among(sizes),
            depended=facts.depended[index],
            reads=context.tables[READS],
            expand=context.expand,
            frees=facts.frees[index],
            rewrite=functools.partial(context.rewrite, into_bodies=False, into_subprograms=False),
            strict=context.strict,
        )

"""Compile an FX graph to a program; shared by the frontends."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from tj_core import tag
from tj_core.extend import (
    CannotExpandError,
    CaptureError,
    Compilation,
    Jitted,
    PassError,
    Source,
    own_pass,
)
from tj_core.internal import call_of, source_of

from tj_torch.capture.acquire import Acquired, acquire
from tj_torch.capture.autocast_notes import check_of
from tj_torch.capture.comparison import check_part
from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo.arrays import check_arrays
from tj_torch.capture.dynamo.changes import changes_objects
from tj_torch.capture.dynamo.fragments import compiling_frame
from tj_torch.capture.dynamo.hook import hooked
from tj_torch.capture.dynamo.inner_gradients import not_captured
from tj_torch.capture.dynamo.module_paths import name_modules
from tj_torch.capture.dynamo.optimizers import OptimizerError, check_optimizers, left_codes
from tj_torch.capture.dynamo.reference_cycles import empty
from tj_torch.capture.dynamo.trace_limits import UnheldError, check_nested
from tj_torch.capture.inner_gradients import InnerGradientsError, asks, used_up
from tj_torch.capture.inputs import STATIC
from tj_torch.capture.probing import settle
from tj_torch.capture.sources import node_source
from tj_torch.capture.tensor_places import Held, held_by
from tj_torch.dispatch.behind import entry_of, recompiled
from tj_torch.dispatch.changed_objects import losing
from tj_torch.dispatch.fallbacks import fall_back_from, stand_aside
from tj_torch.guards.ambient import below_mode
from tj_torch.guards.branches import branch_on_state, branch_on_values
from tj_torch.guards.subclasses import methods_check
from tj_torch.ops.fakes.handler_state import changed_state
from tj_torch.runtime.inner_gradients import ending, is_unobserved
from tj_torch.torch_private.tables import PRIVATE_NAMES

if TYPE_CHECKING:
    from tj_torch.ops.service import TorchDialects

__all__ = ["GraphCompiler", "check_handlers"]


@dataclass(frozen=True)
class GraphCompiler:
    """Compiler of one callable's graphs: acquires a trace and runs the session's pipeline on it.

    With ``probe``, `settle` runs the probes of private names even for a tested PyTorch.
    """

    jitted: Jitted
    dialects: TorchDialects
    probe: bool = False

    @property
    def opaque(self) -> tuple[Callable[..., Any], ...]:
        """Functions that captures record as a single call."""
        return (tag,)

    def compile(
        self,
        graph: torch.fx.GraphModule,
        examples: Sequence[Any],
        sources: Mapping[int, str],
        parameters: Sequence[str] = (),
    ) -> Compilation:
        """Compile ``graph``; add the seconds and the memo's hits and misses to the statistics.

        :raises CaptureError: if the graph does not show all that the program does.
        :raises PassError: if a pass of tj's own fails.
        """
        with self.dialects.within(graph):
            acquired = self.acquired(graph, examples, sources, parameters)
            compilation = _holding(self.finish(acquired), acquired.held)
            if any(map(asks, graph.graph.nodes)):
                compilation = _differentiating(compilation, graph)
            check_handlers()
        return branch_on_values(
            compilation,
            check_of(self.dialects.tables, acquired.trace, len(acquired.held)),
            lambda values: self.again(compilation, graph, values, sources, parameters),
        )

    def acquired(
        self,
        graph: torch.fx.GraphModule,
        examples: Sequence[Any],
        sources: Mapping[int, str],
        parameters: Sequence[str] = (),
    ) -> Acquired:
        """The trace of ``graph``, whose symbols are those of the sizes at hand.

        :raises CaptureError: if the graph does not show all that the program does.
        """
        session = self.jitted.session
        with self.own("acquire"):
            check_arrays(graph, sources)
            check_nested(graph)
        with self.own("acquire"), self.counting():
            return acquire(
                graph,
                examples,
                dialects=self.dialects,
                language=session.language,
                tags=session.tags,
                sources=sources,
                parameters=parameters,
                static=self.jitted.pipeline.reads(STATIC),
            )

    def again(
        self,
        first: Compilation,
        graph: torch.fx.GraphModule,
        values: Sequence[Any],
        sources: Mapping[int, str],
        parameters: Sequence[str],
    ) -> Callable[..., Any]:
        """Compile ``graph`` for ``values``, which differ from its examples in being leaves.

        The guards hold for these values, too. The new compilation is a variant of ``first``.
        Returns the graph's own forward if the compilation fails.
        """
        with dynamo.compiling(), self.jitted.lock:
            try:
                made = self.compile(graph, values, sources, parameters)
            except (CaptureError, PassError) as error:
                fall_back_from(self.jitted, error)
                return graph.forward
            first.variants.append(made)
            return made.function

    @contextlib.contextmanager
    def own(self, name: str, *but: type[Exception]) -> Iterator[None]:
        """Run the frontend's own pass ``name`` inside; errors of classes ``but`` pass unchanged.

        :raises CaptureError: if a call cannot be expanded on fake tensors.
        :raises PassError: if the pass fails.
        """
        strict = self.jitted.session.config.core.strict
        with own_pass(name, strict=strict, locate=_line, but=but):
            try:
                yield
            except CannotExpandError as error:
                raise CaptureError(error.message, source=source_of(error, _line)) from error

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Add the memo's hits and misses meanwhile to the jitted's statistics."""
        memo, stats = self.dialects.memo, self.jitted.stats
        hits, misses = memo.hits, memo.misses
        try:
            yield
        finally:
            stats.memo_hits += memo.hits - hits
            stats.memo_misses += memo.misses - misses

    def finish(self, acquired: Acquired, *, complete: bool = False) -> Compilation:
        """Run the pipeline on the acquired trace; count the seconds of acquisition, too.

        If ``complete``, no kernel is left to be compiled behind calls.
        """
        self.jitted.stats.add_seconds(acquired.seconds)
        return self.jitted.compile(acquired.trace, sizes=self.dialects.sizes, complete=complete)

    def backend(
        self, graph: torch.fx.GraphModule, examples: Sequence[Any], program: Any = None
    ) -> Callable[..., Any]:
        """A ``torch.compile`` backend: each graph, a part of ``program``, becomes an entry.

        A graph without calls, or that no trace can hold, runs as captured; so do all graphs under
        forward-mode AD, or inside of a tensor's ``__torch_dispatch__``. Where a graph does not show
        all that the program does, Dynamo runs that frame uncompiled.
        """
        dynamo.guard_forward_mode()
        mode = below_mode()
        if mode is not None:
            stand_aside(self.jitted, f"{mode} is active")
            return graph.forward
        if all(node.op in ("placeholder", "output") for node in graph.graph.nodes):
            dynamo.forget_examples()
            return graph.forward  # a part that computes nothing
        with dynamo.compiling(), self.jitted.lock:
            frame, changed = compiling_frame(), changes_objects()
            self.jitted.reason = recompiled(frame)
            # A compiled graph keeps none.
            values = [node.meta.get("example_value") for node in graph.graph.nodes]
            name_modules(graph, program, frame)
            try:
                check_optimizers(graph)
                check_part(graph.graph)
                compilation = self.compile(graph, examples, dynamo.placeholder_sources(graph))
            except UnheldError as error:
                fall_back_from(self.jitted, error)
                return graph
            except InnerGradientsError as error:
                empty(graph)
                raise not_captured(error.message) from error
            except (CaptureError, PassError) as error:
                # The optimizers' shared code, compiled, would assume that the whole step is.
                if isinstance(error, OptimizerError):
                    dynamo.leave(left_codes())
                fall_back_from(self.jitted, error)
                empty(graph)
                raise dynamo.skipped(error.message) from error
            entry = entry_of(compilation, self.jitted, frame)
            try:
                self.jitted.add(entry)
            except BaseException:  # interrupted: nobody gets the program
                self.jitted.drop(entry)
                raise
            self.jitted.stats.misses += 1
            dynamo.forget_examples()
        function = compilation.function
        if changed:
            function = losing(function, self.jitted.name)
        # Dynamo has no guards on the methods of a tensor subclass that implement its operations.
        return branch_on_state(function, methods_check((*examples, *values)), graph.forward)

    def settle(self) -> None:
        """Turn off, in this process, features whose private names this PyTorch lacks."""
        session = self.jitted.session
        tables = [rule.value for rule in session.tables[PRIVATE_NAMES]]
        settle(tables, self.probe, session.config.core.cache_dir)

    def hooked(
        self,
        fn: Callable[..., Any],
        on_skip: Callable[[str, Any], None],
        program: Callable[[], Any],
    ) -> Callable[..., Any]:
        """Wrap ``fn`` in PyTorch's eval-frame hook, with `backend` for its graphs.

        ``fn`` calls what ``program`` returns, the user's function or module.
        ``on_skip`` is called with the reason and the stack when Dynamo leaves a frame uncompiled.
        """
        dynamo.record_calls(tag)
        # Dynamo never drops a backend, so the backend must not keep this compiler alive.
        owner = weakref.ref(self)

        def tj(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            compiler = owner()
            assert compiler is not None
            return compiler.backend(graph, examples, program())

        jitted = self.jitted
        return hooked(fn, tj, jitted.options.dynamic, on_skip, fullgraph=jitted.fullgraph)


def check_handlers() -> None:
    """Check that handlers of tensor subclasses wrote no Python state during compilation.

    :raises CaptureError: naming the state that was written.
    """
    if name := changed_state():
        raise CaptureError(f"operations on a tensor subclass change {name}: it runs as it is")


def _line(value: Any) -> Source | None:
    """Source line in the user's program of an FX node or a call."""
    return node_source(value) if isinstance(value, torch.fx.Node) else call_of(value)


def _holding(compilation: Compilation, held: tuple[Held, ...]) -> Compilation:
    """``compilation`` with a function that supplies the last inputs, ``held``, itself."""
    function, tensors = compilation.function, held_by(held)

    def run(*args: Any) -> Any:
        return function(*args, *tensors())

    return replace(compilation, function=run) if held else compilation


def _differentiating(compilation: Compilation, graph: torch.fx.GraphModule) -> Compilation:
    """``compilation`` of a ``graph`` that calls ``torch.autograd.grad``.

    The graph itself runs where somebody observes the backward.
    """
    function = branch_on_state(compilation.function, is_unobserved, graph.forward)
    return replace(compilation, function=ending(function, used_up(graph.graph)))

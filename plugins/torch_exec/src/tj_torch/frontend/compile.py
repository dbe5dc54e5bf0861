"""One graph to one program, whoever captured it; shared by all frontends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core import tag
from tj_core.errors import CaptureError
from tj_core.jitted import Entry, Jitted
from tj_core.pipeline import Compilation

from tj_torch.dialects import TorchDialects
from tj_torch.frontend import dynamo
from tj_torch.frontend.acquire import Acquired, acquire
from tj_torch.frontend.arrays import check_arrays
from tj_torch.frontend.entries import fall_back
from tj_torch.frontend.optimizers import check_optimizers

__all__ = ["GraphCompiler"]


@dataclass(frozen=True)
class GraphCompiler:
    """Acquires a trace from an FX graph and runs the session's pipeline on it."""

    jitted: Jitted
    dialects: TorchDialects

    @property
    def opaque(self) -> tuple[Callable[..., Any], ...]:
        """Functions that captures record as one call."""
        return (tag,)

    def compile(
        self,
        graph: torch.fx.GraphModule,
        examples: Sequence[Any],
        sources: Mapping[int, str],
        parameters: Sequence[str] = (),
    ) -> Compilation:
        """The program of ``graph``; counts its seconds and memo use in the jitted's statistics.

        :raises CaptureError: if the graph does not say what the program does.
        """
        session = self.jitted.session
        check_arrays(graph, sources)
        check_optimizers(graph)
        with self.dialects.within(graph):
            with self.counting():
                acquired = acquire(
                    graph,
                    examples,
                    dialects=self.dialects,
                    language=session.language,
                    tags=session.tags,
                    sources=sources,
                    parameters=parameters,
                )
            return self.finish(acquired)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is taken from the memo meanwhile in the jitted's statistics."""
        memo, stats = self.dialects.memo, self.jitted.stats
        hits, misses = memo.hits, memo.misses
        try:
            yield
        finally:
            stats.memo_hits += memo.hits - hits
            stats.memo_misses += memo.misses - misses

    def finish(self, acquired: Acquired) -> Compilation:
        """The program of what was acquired; counts the seconds of both."""
        self.jitted.stats.add_seconds(acquired.seconds)
        return self.jitted.compile(acquired.trace)

    def backend(self, graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        """A ``torch.compile`` backend: each graph becomes an entry of its own.

        Where a graph does not say what the program does, Dynamo is told to run that part as it is.
        """
        with self.jitted.lock:
            try:
                compilation = self.compile(graph, examples, dynamo.placeholder_sources(graph))
            except CaptureError as error:
                fall_back(self.jitted, f"not captured: {error.message}", error.source)
                raise dynamo.skipped(error.message) from error
            entry = Entry(compilation)
            try:
                self.jitted.add(entry)
            except BaseException:  # interrupted: nobody gets the program
                self.jitted.drop(entry)
                raise
            self.jitted.stats.misses += 1
        return compilation.function

    def hooked(
        self, fn: Callable[..., Any], on_skip: Callable[[str, Any], None]
    ) -> Callable[..., Any]:
        """``fn`` under PyTorch's own hook, with `backend` for its graphs.

        ``on_skip`` is told, with the stack, why a part of it runs as it is.
        """
        dynamo.record_calls(tag)
        return dynamo.hooked(fn, self.backend, self.jitted.options.dynamic, on_skip)

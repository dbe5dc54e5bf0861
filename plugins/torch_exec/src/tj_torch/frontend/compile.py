"""One graph to one program, whoever captured it; shared by all frontends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core import tag
from tj_core.errors import CaptureError, TjWarning
from tj_core.jitted import Entry, Fallback, Jitted
from tj_core.pipeline import Compilation
from tj_core.source import Source

from tj_torch.dialects import TorchDialects
from tj_torch.frontend import dynamo
from tj_torch.frontend.acquire import acquire
from tj_torch.frontend.sources import users_stacklevel

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
        """The program of ``graph``; counts its seconds and memo use in the jitted's statistics."""
        session, stats = self.jitted.session, self.jitted.stats
        memo = self.dialects.memo
        hits, misses = memo.hits, memo.misses
        acquired = acquire(
            graph,
            examples,
            dialects=self.dialects,
            language=session.language,
            tags=session.tags,
            sources=sources,
            parameters=parameters,
        )
        stats.add_seconds(acquired.seconds)
        stats.memo_hits += memo.hits - hits
        stats.memo_misses += memo.misses - misses
        return self.jitted.compile(acquired.trace)

    def backend(self, graph: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        """A ``torch.compile`` backend: each graph becomes an entry of its own.

        Where a graph does not say what the program does, Dynamo is told to run that part as it is.
        """
        with self.jitted.lock:
            try:
                compilation = self.compile(graph, examples, dynamo.placeholder_sources(graph))
            except CaptureError as error:
                self.fall_back(f"not captured: {error.message}", error.source)
                raise dynamo.skipped(error.message) from error
            self.jitted.stats.misses += 1
            self.jitted.add(Entry(compilation))
        return compilation.program.function

    def fall_back(self, reason: str, source: Source | None) -> None:
        """Record a fallback, and warn of it once."""
        fallback = Fallback(reason, source)
        stats = self.jitted.stats
        if fallback in stats.fallbacks:
            return
        stats.fallbacks = (*stats.fallbacks, fallback)
        where = f"\n  at {source}" if source else ""
        warnings.warn(
            f"tj: {self.jitted.name}: {reason}{where}", TjWarning, stacklevel=users_stacklevel()
        )

    def hooked(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """``fn`` under PyTorch's own hook, with `backend` for its graphs."""
        dynamo.record_calls(tag)
        return dynamo.hooked(fn, self.backend, self.jitted.options.dynamic)

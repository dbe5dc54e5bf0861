"""Programs of one compilation beside the main one, each compiled at its first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.compile.compilation import Compilation, Track
from tj_core.compile.failures import warn_of
from tj_core.compile.layouts import taking
from tj_core.errors import PassError
from tj_core.passes.fuse.layouts import Choice

if TYPE_CHECKING:
    from tj_core.compile.codegen import Program
    from tj_core.ir.trace import Trace

__all__ = ["LatePrograms"]

Choices = Mapping[str, Choice]


@dataclass(frozen=True)
class LatePrograms:
    """The programs ``others`` of a compilation, by name; a trace for one that is not compiled yet.

    ``choices`` returns the inputs of a trace that the main program returns with chosen strides.
    ``compile`` runs the passes on a trace for such inputs, and returns those inputs that the
    program takes as they come. ``fallback`` compiles a trace on which a pass fails, since eager
    cannot take over after the main program has run. ``lock`` is held during a compilation.
    """

    lock: Any
    choices: Callable[[Trace], dict[str, Choice]]
    compile: Callable[[str, Trace, dict[str, Choice]], tuple[Track, Choices]]
    fallback: Callable[[Trace], Compilation]
    others: dict[str, Track | Trace] = field(default_factory=dict)

    def program(self, name: str, trace: Trace) -> Program:
        """The program of ``trace``, which is shown under ``name``."""
        with self.lock:
            come = self.choices(trace)
            try:
                track, taken = self.compile(name, trace, come)
            except PassError as error:
                warn_of(error)
                made = self.fallback(trace)
                track, taken = Track(made.traces, made.claims, made.program), {}
            self.others[name] = track
            return taking(track.program, trace, come, taken)

    def show(self, name: str, compilation: Compilation) -> None:
        """Show the traces of ``compilation`` under ``name``."""
        c = compilation
        self.others[name] = Track(c.traces, c.claims, c.program, c.regions)

"""The finished program on disk, in one run of the pipeline: looked up, else stored at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tj_core.compile.compilation import Later
from tj_core.compile.kept_programs import Finished, Shown
from tj_core.passes.fuse.fuse import FusedTrace

if TYPE_CHECKING:
    from tj_core.compile.context import PassContext
    from tj_core.compile.keeping import Keeping
    from tj_core.compile.outcome import Outcome
    from tj_core.compile.steps import Steps
    from tj_core.compile.transforms import Ranked
    from tj_core.ir.trace import Trace
    from tj_core.passes.claim_record import ClaimRecord

__all__ = ["Recall"]


@dataclass
class Recall:
    """The finished program of ``steps`` on disk.

    ``entry`` is None if nothing is kept, and before the program was looked for. ``hidden`` is set
    if the program was found: the index of its intermediate traces among those of ``steps``, and a
    function that reads them. ``making`` holds the lock of the entry from `find` to `keep`; if a
    pass in between fails, its caller closes ``making``.
    """

    steps: Steps
    entry: Keeping | None = None
    hidden: tuple[int, Callable[[], Shown]] | None = None
    making: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def find(
        self, transforms: Sequence[Ranked], context: Callable[[Ranked], PassContext]
    ) -> tuple[Finished, list[Outcome]] | None:
        """The finished program, with the outcomes of ``transforms``; None if there is none."""
        if self.entry is None:
            return None
        start = time.perf_counter()
        self.making.enter_context(self.entry.making())
        try:
            kept = self.entry.find(transforms, context)
        # An interrupt, too: the lock of the entry would let other processes wait.
        except BaseException:
            self.making.close()
            raise
        self.steps.spend("look for the program", start)
        if kept is not None:
            self.making.close()
            found, _ = kept
            self.hidden = len(self.steps.traces), found.shown
            self.steps.reached |= found.reached
        return kept

    def note(self, ranked: Ranked, said: Outcome) -> None:
        """Note the payloads of a transform that does not run if the program is found on disk."""
        if self.entry is not None:
            self.entry.note(ranked, said)

    def keep(self, fused: FusedTrace | None, known: int, claims: tuple[ClaimRecord, ...]) -> None:
        """Store the program for other processes, without the first ``known`` traces."""
        if self.entry is None:
            return
        start = time.perf_counter()
        shown = Shown(tuple(self.steps.traces[known:-1]), claims)
        self.entry.keep(fused or FusedTrace(self.steps.latest), self.steps.reached, shown)
        self.making.close()
        self.steps.spend("keep the program", start)

    def track(
        self, claims: tuple[ClaimRecord, ...]
    ) -> tuple[Sequence[Trace], Sequence[ClaimRecord]]:
        """The traces of the passes, and ``claims``.

        Those of a program from disk are read at their first use.
        """
        traces = self.steps.traces
        if self.hidden is None:
            return tuple(traces), claims
        place, shown = self.hidden
        whole = Later(traces[:place], lambda: shown().traces, traces[place:])
        return whole, Later((), lambda: shown().claims, ())

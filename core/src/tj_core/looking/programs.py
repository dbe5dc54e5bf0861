"""The programs behind a callable: entries, fragments between graph breaks, backwards, variants."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.compile.compilation import Track
from tj_core.compile.worker import worker
from tj_core.errors import TjError
from tj_core.host.jitted import Entry, Fallback, Guard, Jitted, Stats
from tj_core.host.session import current_session
from tj_core.showing import aligned, one_line, table_html, text_html

if TYPE_CHECKING:
    from tj_core.compile.behind import Behind
    from tj_core.compile.compilation import Compilation
    from tj_core.compile.region_kernels import RegionKernel
    from tj_core.ir.trace import Trace
    from tj_core.passes.claim_record import ClaimRecord

__all__ = [
    "CompiledProgram",
    "Programs",
    "merged_stats",
    "own_states",
    "programs_of",
    "states_of",
    "wait_for",
]

HEADER = ("program", "kind", "function", "calls", "runs after the graph break")


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class CompiledProgram:
    """One program behind a callable.

    ``kind`` is ``"entry"`` (a whole program), ``"fragment"`` (a part between graph breaks),
    ``"variant"`` (an entry compiled again for other facts of its inputs), or the name of a program
    beside one of these: ``"backward"``, ``"epilogue"``, ``"shared"``. ``part`` is its key in
    ``compilation.others``, empty for the first three kinds.
    """

    name: str
    kind: str
    jitted: Jitted
    entry: Entry
    compilation: Compilation
    part: str = ""

    @property
    def track(self) -> Track | None:
        """The traces, claims, code and regions; None for a trace that is not compiled."""
        if self.part:
            found = self.compilation.others[self.part]
            return found if isinstance(found, Track) else None
        c = self.compilation
        return Track(c.traces, c.claims, c.program, c.regions)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The traces: as acquired, or split off, and after each pass that changed it."""
        found = self.compilation.others[self.part] if self.part else self.compilation
        return tuple(found.traces) if hasattr(found, "traces") else (found,)

    @property
    def claims(self) -> tuple[ClaimRecord, ...]:
        """The claims of its calls."""
        return tuple(self.track.claims) if self.track else ()

    @property
    def regions(self) -> tuple[RegionKernel, ...]:
        """The regions that it calls."""
        return self.track.regions if self.track else ()

    @property
    def code(self) -> str:
        """The generated code; empty for a program that is not compiled, or no program of its own.

        A backward is compiled at its first use, and an epilogue runs around the main program.
        """
        return self.track.program.source if self.track else ""

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The conditions under which its entry is used."""
        return self.entry.guards()

    @property
    def function(self) -> str:
        """The name of the Python function that the program is, or is a part of."""
        fragment = self.entry.fragment
        return self.jitted.name if fragment is None else fragment.function

    @property
    def after(self) -> Fallback | None:
        """The graph break after which the fragment begins; None at the function's beginning."""
        return self.entry.fragment.after if self.entry.fragment else None

    @property
    def ended(self) -> Fallback | None:
        """The graph break that ends the fragment; None where the function returns."""
        return self.entry.fragment.ended if self.entry.fragment else None

    def row(self) -> tuple[str, ...]:
        """The cells under `HEADER`."""
        after = "" if self.after is None or self.part else one_line(self.after).partition("; ")[0]
        return self.name, self.kind, self.function, str(len(self.traces[-1].calls)), after

    def __repr__(self) -> str:
        return f"<tj program {self.name!r} of {self.function}: {len(self.traces[-1].calls)} calls>"

    def __str__(self) -> str:
        return str(self.traces[-1])

    def _repr_html_(self) -> str:
        return text_html(str(self))


class Programs(tuple[CompiledProgram, ...]):
    """The programs behind a callable, oldest first; shows itself as a table."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        """The program at a place, or that of a name (``"0 backward"``)."""
        if not isinstance(index, str):
            return super().__getitem__(index)
        for program in self:
            if program.name == index:
                return program
        names = ", ".join(program.name for program in self)
        raise TjError(f"there is no program {index!r}; there are: {names or 'none'}")

    def rows(self) -> list[tuple[str, ...]]:
        """The table's rows; `HEADER` names the columns."""
        return [program.row() for program in self]

    def __repr__(self) -> str:
        return f"<{len(self)} tj programs>"

    def __str__(self) -> str:
        return "\n".join(aligned([HEADER, *self.rows()]))

    def _repr_html_(self) -> str:
        return table_html(HEADER, self.rows())


def states_of(fn: Any) -> tuple[Jitted, ...]:
    """The states behind ``fn``: what `tj.jit` returned, a program of it, or what a frontend knows.

    There is none behind what ``torch.compile`` returned before it has been called.

    :raises TjError: for any other object.
    """
    if isinstance(fn, CompiledProgram):
        return (fn.jitted,)
    fn = _called(fn)
    own = fn if isinstance(fn, Jitted) else getattr(fn, "__tj__", None)
    found = {own: None} if isinstance(own, Jitted) else {}
    known = bool(found)
    session = own.session if isinstance(own, Jitted) else current_session()
    for frontend in session.frontends:
        more = frontend.states(fn) if frontend.states is not None else None
        known = known or more is not None
        found |= dict.fromkeys(more or ())
    if not known:
        raise TjError(
            f"{fn!r} is not a jitted callable",
            hint="pass what tj.jit(...) or torch.compile(..., backend='tj') returned, a module "
            "that holds one, or one of tj.programs(...)",
        )
    return tuple(found)


def _called(fn: Any) -> Any:
    """The callable behind a `functools.partial`."""
    while isinstance(fn, functools.partial) and not hasattr(fn, "__tj__"):
        fn = fn.func
    return fn


def own_states(fn: Any) -> tuple[Jitted, ...]:
    """The state of ``fn`` itself, without those inside of it; else as `states_of`.

    :raises TjError: see `states_of`.
    """
    fn = _called(fn)
    own = fn if isinstance(fn, Jitted) else getattr(fn, "__tj__", None)
    return (own,) if isinstance(own, Jitted) else states_of(fn)


def programs_of(fn: Any) -> Programs:
    """All programs behind ``fn``, in the order of their compilation."""
    if isinstance(fn, CompiledProgram):
        return Programs((fn,))
    entries = ((entry, state) for state in states_of(fn) for entry in state.entries)
    found: list[CompiledProgram] = []
    numbered = sorted(entries, key=lambda pair: pair[0].number)
    for index, (entry, state) in enumerate(numbered):
        if entry.compilation is not None:
            part = entry.fragment
            whole = part is None or (part.after is None and part.ended is None)
            kind = "entry" if whole else "fragment"
            found += _programs(str(index), kind, state, entry, entry.compilation)
    return Programs(found)


def _programs(
    name: str, kind: str, state: Jitted, entry: Entry, compilation: Compilation
) -> Iterator[CompiledProgram]:
    yield CompiledProgram(name, kind, state, entry, compilation)
    for part in compilation.others:
        # More follows where there are several programs of a kind: ``bucketed_2``.
        of = part.partition("_")[0]
        yield CompiledProgram(f"{name} {part}", of, state, entry, compilation, part)
    for index, variant in enumerate(compilation.variants):
        yield from _programs(f"{name} variant {index}", "variant", state, entry, variant)


def wait_for(states: Sequence[Jitted], timeout: float | None = None) -> bool:
    """Wait for what is compiled behind ``states``; False if ``timeout`` seconds were too few."""
    until = None if timeout is None else time.monotonic() + timeout
    queued: list[Behind] = []
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not worker().wait(left):
            return False
        # A program that was compiled behind a call has kernels of its own to compile.
        behind = [c.behind for s in states for c in s.compilations if c.behind is not None]
        waiting = [each for each in behind if each.waits]
        if not waiting or waiting == queued:  # those are given up: the process ends
            break
        for each in waiting:
            each.queue()
        queued = waiting
    for each in behind:
        each.tell()
    return not waiting


def merged_stats(states: Sequence[Jitted]) -> Stats:
    """The counters of ``states``: those of the only one, or new ones with the sums."""
    for state in states:
        state.count()
    if len(states) == 1:
        return states[0].stats
    total = Stats()
    for state in states:
        total.include(state.stats)
    return total

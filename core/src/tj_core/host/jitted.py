"""The state of a jitted callable: its session, options, compiled entries and statistics."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from tj_core.errors import TjError
from tj_core.host.logs import log_break, log_compile, log_late, log_recompile
from tj_core.showing import aligned, one_line, table_html, text_html

if TYPE_CHECKING:
    from tj_core.compile.compilation import Compilation, Counts
    from tj_core.compile.pipeline import Pipeline
    from tj_core.contract.sizes import ProgramSizes
    from tj_core.host.services import Services
    from tj_core.ir.trace import Trace
    from tj_core.source import Source

__all__ = [
    "Entry",
    "Fallback",
    "Fragment",
    "Guard",
    "Guards",
    "JitOptions",
    "Jitted",
    "Stats",
    "jitted_of",
]

# Callables have numbers in the order of their making, over all sessions of the process.
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition under which an entry is valid, as Python text, and its source line."""

    text: str
    source: Source | None = None

    def __str__(self) -> str:
        return f"{self.text}  # {self.source}" if self.source else self.text


class Guards(tuple[Guard, ...]):
    """The guards of an entry; shows itself with one guard a line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return f"<{len(self)} tj guards>"

    def _repr_html_(self) -> str:
        return text_html(str(self))


@dataclass(frozen=True, slots=True)
class Fallback:
    """A part of the program that runs without tj: the reason, and the user's line."""

    reason: str
    source: Source | None = None

    def __str__(self) -> str:
        return f"{self.source.short()}: {self.reason}" if self.source else self.reason


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a program with graph breaks: the Python function that it is in, and its ends.

    ``after`` is the graph break after which it begins, None at the function's beginning; ``ended``
    the graph break that ends it, None where the function returns.
    """

    function: str
    after: Fallback | None = None
    ended: Fallback | None = None


@dataclass(frozen=True, slots=True)
class JitOptions:
    """The options of one `tj.jit` call that are not config."""

    dynamic: bool | None = None
    autocast: Any = None
    fullgraph: bool | None = None
    on_miss: str | None = None
    compile: str | None = None


@dataclass(eq=False)
class Entry:
    """A compiled specialisation of a program, with its guards.

    ``compilation`` is None for a program that computes nothing on tensors. ``fragment`` is set for
    a part between graph breaks. ``reason`` says why no earlier entry was right. ``number`` orders
    the entries of a process.
    """

    compilation: Compilation | None
    guards: Callable[[], tuple[Guard, ...]] = tuple
    fragment: Fragment | None = None
    reason: str = ""
    number: int = field(default_factory=lambda: next(_serial))


@dataclass(repr=False)
class Stats:
    """Counters of one jitted callable; ``seconds`` are compile time by pass.

    ``calls`` = ``hits`` + ``misses``; a miss compiles, but for ``eager`` of them, which were
    answered in eager (``on_miss``). ``evicted`` counts entries dropped for ``max_entries``,
    ``invalidated`` those dropped because an object they depend on was freed.
    ``memo_hits`` and ``memo_misses`` count expansions taken from and put into the session's memo.
    Of the distinct regions of each program, ``region_hits`` were compiled in the session before,
    ``region_kept`` were taken from the cache on disk, and ``region_misses`` were compiled;
    ``region_waiting`` are run by PyTorch now, while they are compiled behind (``compile``).
    ``program_kept`` counts the programs, backwards among them, that were found finished on disk.
    """

    hits: int = 0
    misses: int = 0
    eager: int = 0
    entries: int = 0
    evicted: int = 0
    invalidated: int = 0
    memo_hits: int = 0
    memo_misses: int = 0
    region_hits: int = 0
    region_kept: int = 0
    region_misses: int = 0
    region_waiting: int = 0
    program_kept: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    fallbacks: tuple[Fallback, ...] = ()

    @property
    def calls(self) -> int:
        """All calls so far."""
        return self.hits + self.misses

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling, all passes."""
        return sum(self.seconds.values())

    @contextlib.contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add the seconds of a ``with`` block to those of pass ``name``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds({name: time.perf_counter() - start})

    def include(self, other: Stats) -> None:
        """Add the counters of ``other``."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.add_seconds(other.seconds)
        self.fallbacks = tuple(dict.fromkeys((*self.fallbacks, *other.fallbacks)))

    def rows(self) -> list[tuple[str, str]]:
        """The counters that are not zero, by name, and the seconds by pass."""
        counted = {"calls": self.calls, **{name: getattr(self, name) for name in _COUNTERS}}
        rows = [(name, str(value)) for name, value in counted.items() if value]
        rows.append(("compile seconds", f"{self.compile_seconds:.3f}"))
        rows += [(f"  {name}", f"{value:.3f}") for name, value in self.seconds.items()]
        return rows + [("without tj", one_line(fallback)) for fallback in self.fallbacks]

    def __str__(self) -> str:
        return "\n".join(aligned(self.rows()))

    def __repr__(self) -> str:
        return (
            f"<tj stats: {self.calls} calls, {self.hits} hits, {self.misses} misses, "
            f"{self.entries} entries, {self.compile_seconds:.2f} s compiling>"
        )

    def _repr_html_(self) -> str:
        return table_html(("counter", "value"), self.rows())

    def add(self, seconds: dict[str, float], counts: Counts) -> None:
        """Add the seconds of a compilation, and the counts of its regions."""
        self.add_seconds(seconds)
        self.region_hits += counts.found
        self.region_kept += counts.kept
        self.region_misses += counts.compiled
        self.program_kept += counts.finished

    def add_seconds(self, seconds: dict[str, float]) -> None:
        """Add compile seconds by pass."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value


# Types of fields are texts: annotations are not evaluated in this module.
_COUNTERS = tuple(f.name for f in fields(Stats) if f.type == "int")


@dataclass(slots=True)
class _Spent:
    """Seconds of compilation that a log line has told of.

    An object of its own: the pipeline calls it, and a pipeline that referred to its `Jitted` would
    be a cycle, which keeps a program alive until the garbage collector runs.
    """

    stats: Stats
    name: str
    logged: float = 0.0

    def since(self) -> float:
        """Seconds since the last line."""
        before, self.logged = self.logged, self.stats.compile_seconds
        return self.logged - before

    def add_late(self, seconds: dict[str, float], counts: Counts) -> None:
        """Count a program that is compiled when it is needed, and log it."""
        self.stats.add(seconds, counts)
        self.logged += sum(seconds.values())
        log_late(self.name, seconds)


class Jitted:
    """The state of one jitted callable, filled by frontends and read by the API.

    It travels inside the compiled object, never in thread state. ``lock`` is held while compiling.
    ``arguments`` are those of `tj.jit`, and ``again`` jits another object in the same way.
    ``original`` returns the callable that runs the program without tj. ``reason`` says why the
    program that is being compiled is: see `Entry`.
    """

    def __init__(
        self,
        fn: Any,
        session: Services,
        pipeline: Pipeline,
        options: JitOptions,
        arguments: dict[str, Any],
        again: Callable[[Any], Any],
    ) -> None:
        self.fn = fn
        self.arguments = arguments
        self.again = again
        self.session = session
        self.stats = Stats()
        self._spent = _Spent(self.stats, self.name)
        self.options = options
        beside = session.beside if self.compiles_behind else None
        # Where programs are compiled behind calls, one that is there waits for nothing.
        begins = self.on_miss != "eager"
        later = self._spent.add_late
        self.pipeline = replace(pipeline, later=later, beside=beside, begins=begins)
        self.breaks: dict[Fallback, None] = {}
        self.entries: list[Entry] = []
        self.last: Entry | None = None
        self.reason = ""
        self.lock = threading.RLock()
        self.refresh: Callable[[], None] = lambda: None
        self.original: Callable[[], Callable[..., Any]] = lambda: fn

    @property
    def name(self) -> str:
        """The wrapped object's name, for messages."""
        named = getattr(self.fn, "__qualname__", None)
        return named if isinstance(named, str) else type(self.fn).__qualname__

    @property
    def fullgraph(self) -> bool:
        """True if it is an error that the program, or a part of it, runs without tj."""
        core = self.session.config.core
        chosen = (self.options.fullgraph, core.fullgraph, core.strict)
        return next(value for value in chosen if value is not None)

    @property
    def on_miss(self) -> str:
        """Answer of a call that no program is there for: ``"compile"``, or ``"eager"`` at once."""
        chosen = self.options.on_miss
        return self.session.config.core.on_miss if chosen is None else chosen

    @property
    def compiles_behind(self) -> bool:
        """True if kernels are compiled behind calls, which run PyTorch's meanwhile."""
        chosen = self.options.compile or self.session.config.core.compile
        return chosen == "background"

    @property
    def compilations(self) -> Iterator[Compilation]:
        """The compilations of all entries, with their variants."""
        # A copy: calls on other threads add entries.
        found = [e.compilation for e in [*self.entries] if e.compilation is not None]
        while found:
            yield (made := found.pop())
            found += made.variants

    def count(self) -> Stats:
        """The statistics, with those that are counted when they are asked for."""
        self.refresh()
        behind = (c.behind for c in self.compilations)
        self.stats.region_waiting = sum(b.waiting for b in behind if b is not None)
        return self.stats

    def showing(self) -> contextlib.AbstractContextManager[None]:
        """A block around capture and compilation, which show their progress on a terminal."""
        return self.pipeline.progress.showing(self.name, self.pipeline.passes)

    def compile(
        self,
        acquired: Trace,
        *,
        boxed: bool = False,
        sizes: ProgramSizes | None = None,
        complete: bool = False,
    ) -> Compilation:
        """Run the session's pipeline on ``acquired`` and count its seconds.

        ``sizes`` are the symbolic sizes of the program. If ``complete``, no kernel is left to be
        compiled or finished behind calls.
        """
        reason = self.reason
        pipeline = self.pipeline
        if complete:
            pipeline = replace(pipeline, beside=None, begins=False, complete=True)
        compilation = pipeline.compile(acquired, boxed=boxed, sizes=sizes, reason=reason)
        self.stats.add(compilation.seconds, compilation.counts)
        return compilation

    def add(self, entry: Entry) -> None:
        """Keep ``entry`` as the newest."""
        self.entries.append(entry)
        self.last = entry
        self.stats.entries = len(self.entries)
        name = entry.fragment.function if entry.fragment else self.name
        if entry.reason:
            log_recompile(name, entry.reason)
        log_compile(name, self._spent.since(), entry.compilation)

    def note_break(self, found: Fallback, function: str = "") -> None:
        """Note a graph break, in ``function`` if the program has several, and log it once."""
        if found not in self.breaks:
            self.breaks[found] = None
            log_break(function or self.name, found)

    def drop(self, entry: Entry) -> None:
        """Remove ``entry``, if it is still kept."""
        if entry in self.entries:
            self.entries.remove(entry)
        if self.last is entry:
            self.last = self.entries[-1] if self.entries else None
        self.stats.entries = len(self.entries)


def jitted_of(fn: Any) -> Jitted:
    """The state of the callable ``fn``, a result of `tj.jit`.

    :raises TjError: if ``fn`` is no jitted callable.
    """
    state = getattr(fn, "__tj__", None)
    if not isinstance(state, Jitted):
        raise TjError(f"{fn!r} is not a jitted callable", hint="pass what tj.jit(...) returned")
    return state

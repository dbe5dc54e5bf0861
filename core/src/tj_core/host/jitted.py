"""The state of a jitted callable: its session, options, compiled entries and statistics."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tj_core.errors import TjError

if TYPE_CHECKING:
    from tj_core.compile.compilation import Compilation, Counts
    from tj_core.compile.pipeline import Pipeline
    from tj_core.contract.sizes import ProgramSizes
    from tj_core.host.services import Services
    from tj_core.ir.trace import Trace
    from tj_core.source import Source

__all__ = ["Entry", "Fallback", "Guard", "JitOptions", "Jitted", "Stats", "jitted_of"]


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition under which an entry is valid, as Python text, and its source line."""

    text: str
    source: Source | None = None

    def __str__(self) -> str:
        return f"{self.text}  # {self.source}" if self.source else self.text


@dataclass(frozen=True, slots=True)
class Fallback:
    """A part of the program that runs without tj: the reason, and the user's line."""

    reason: str
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class JitOptions:
    """The options of one `tj.jit` call that are not config."""

    dynamic: bool | None = None
    autocast: Any = None


@dataclass(eq=False)
class Entry:
    """A compiled specialisation of a program, with its guards.

    ``compilation`` is None for a program that computes nothing on tensors.
    """

    compilation: Compilation | None
    guards: Callable[[], tuple[Guard, ...]] = tuple


@dataclass
class Stats:
    """Counters of one jitted callable; ``seconds`` are compile time by pass.

    ``calls`` = ``hits`` + ``misses``; a miss compiles. ``evicted`` counts entries dropped for
    ``max_entries``, ``invalidated`` those dropped because an object they depend on was freed.
    ``memo_hits`` and ``memo_misses`` count expansions taken from and put into the session's memo.
    Of the distinct regions of each program, ``region_hits`` were compiled in the session before,
    ``region_kept`` were taken from the cache on disk, and ``region_misses`` were compiled.
    ``program_kept`` counts the programs, backwards among them, that were found finished on disk.
    """

    hits: int = 0
    misses: int = 0
    entries: int = 0
    evicted: int = 0
    invalidated: int = 0
    memo_hits: int = 0
    memo_misses: int = 0
    region_hits: int = 0
    region_kept: int = 0
    region_misses: int = 0
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


class Jitted:
    """The state of one jitted callable, filled by frontends and read by the API.

    It travels inside the compiled object, never in thread state. ``lock`` is held while compiling.
    ``arguments`` are those of `tj.jit`, and ``again`` jits another object in the same way.
    ``original`` returns the callable that runs the program without tj.
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
        self.pipeline = replace(pipeline, later=self.stats.add)
        self.options = options
        self.entries: list[Entry] = []
        self.last: Entry | None = None
        self.lock = threading.RLock()
        self.refresh: Callable[[], None] = lambda: None
        self.original: Callable[[], Callable[..., Any]] = lambda: fn

    @property
    def name(self) -> str:
        """The wrapped object's name, for messages."""
        named = getattr(self.fn, "__qualname__", None)
        return named if isinstance(named, str) else type(self.fn).__qualname__

    def compile(
        self, acquired: Trace, *, boxed: bool = False, sizes: ProgramSizes | None = None
    ) -> Compilation:
        """Run the session's pipeline on ``acquired`` and count its seconds.

        ``sizes`` are the symbolic sizes of the program.
        """
        compilation = self.pipeline.compile(acquired, boxed=boxed, sizes=sizes)
        self.stats.add(compilation.seconds, compilation.counts)
        return compilation

    def add(self, entry: Entry) -> None:
        """Keep ``entry`` as the newest."""
        self.entries.append(entry)
        self.last = entry
        self.stats.entries = len(self.entries)

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

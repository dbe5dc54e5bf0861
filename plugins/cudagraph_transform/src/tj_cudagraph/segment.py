"""Execution of segments: warm-up runs first, then a capture, then replays.

**Results are copied out** of a graph's memory after each replay. The alternative, to skip the graph
while a result of its last replay is alive, saves the copy. But accumulated gradients, a list of
losses or a second caller keep results alive for long, and each such run would do without its graph;
and graphs that share a pool could only be replayed in the order of their capture. With copies,
replays may come in any order, from any number of threads, whatever results callers keep.

**Inputs** tagged `STATIC_MEMORY_LOCATION` are read in place: a graph is bound to their addresses.
Other inputs are copied to memory of the graph before each replay.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from tj_core.extend import PluginError, TjWarning, notes

from tj_cudagraph.device import Graphs, Place, Pool, Tensors
from tj_cudagraph.memory import apart, distinct, like, overlaps

if TYPE_CHECKING:
    from tj_cudagraph.options import Options

__all__ = ["Segments"]

Program = Callable[..., Tensors]

KEYS = 64
"""Number of input keys for which a segment counts warm-up runs."""


@dataclass(eq=False)
class SharedPool:
    """A pool, and the lock that a run of one of its graphs holds: copies in, replay, copies out.

    The lock is re-entrant, since a kernel that is warmed up may itself run a segment.
    """

    pool: Pool
    lock: Any = field(default_factory=threading.RLock)


@dataclass(eq=False)
class Segments:
    """Graphs of a session: segments by their programs, and a pool for each place."""

    graphs: Graphs
    options: Options
    pools: dict[Place, SharedPool] = field(default_factory=dict)
    segments: WeakKeyDictionary[Program, Segment] = field(default_factory=WeakKeyDictionary)
    lock: Any = field(default_factory=threading.Lock)

    def run(self, program: Program, static: Tensors, copied: Tensors) -> Tensors:
        """Run ``program`` on its ``static`` inputs, which keep their addresses, and then the
        ``copied`` ones.
        """
        segment = self.segments.get(program)
        if segment is None:
            with self.lock:
                segment = self.segments.setdefault(program, Segment(self))
        return segment.run(program, static, copied)

    def pool(self, place: Place) -> SharedPool:
        """The pool of ``place``, made on first use."""
        with self.lock:
            found = self.pools.get(place)
            if found is None:
                found = self.pools[place] = SharedPool(self.graphs.pool(place))
            return found

    def forget(self, place: Place) -> None:
        """Drop the pool of ``place``, in which a capture has failed; the next use makes another."""
        with self.lock:
            self.pools.pop(place, None)


class NotCaptured(Exception):
    """A segment whose inputs or results a graph cannot copy; the message is the reason."""


@dataclass(frozen=True, eq=False, slots=True)
class Captured:
    """A graph, with its memory for copied inputs and for results."""

    graphs: Graphs
    shared: SharedPool
    replay: Callable[[], None]
    inputs: Tensors
    results: Tensors

    def run(self, copied: Tensors) -> Tensors:
        """Replay for the inputs ``copied``; return copies of the results."""
        made = [like(result) for result in self.results]
        sources = [distinct(x) for x in copied]
        targets = [distinct(x) for x in made]
        with self.shared.lock, torch.no_grad():
            if sources:
                self.graphs.copy(self.inputs, sources)
            self.replay()
            self.graphs.copy(targets, [distinct(x) for x in self.results])
        return made


@dataclass(eq=False)
class Segment:
    """One segment: its graphs by input key, and the number of warm-up runs of each key.

    ``plain`` is set after a failed capture: no graphs from then on. ``full`` is set after the
    warning that there are `Options.graphs` graphs.
    """

    owner: Segments
    captured: dict[Hashable, Captured] = field(default_factory=dict)
    runs: dict[Hashable, int] = field(default_factory=dict)
    plain: bool = False
    full: bool = False
    lock: Any = field(default_factory=threading.RLock)

    def run(self, program: Program, static: Tensors, copied: Tensors) -> Tensors:
        """See `Segments.run`."""
        place = None if self.plain else self.owner.graphs.place((*static, *copied)[0])
        if place is None:
            return program(*static, *copied)
        key = place, _key(static, copied)
        found = self.captured.get(key)
        if found is not None:
            return found.run(copied)
        with self.lock:
            return self.first(key, place, program, static, copied)

    def first(
        self, key: Hashable, place: Place, program: Program, static: Tensors, copied: Tensors
    ) -> Tensors:
        """Run inputs for which no graph was found: warm up, or capture.

        :raises PluginError: if a capture fails, in strict mode.
        """
        # Another thread may have captured it while this one waited for the lock.
        found = self.captured.get(key)
        if found is not None:
            return found.run(copied)
        options, shared = self.owner.options, self.owner.pool(place)
        if self.plain or len(self.captured) >= options.graphs:
            self.note_full()
            return program(*static, *copied)
        count = self.runs.pop(key, 0)
        if count < options.warmup:
            while len(self.runs) >= KEYS:
                del self.runs[next(iter(self.runs))]  # the oldest: dicts are in order of insertion
            self.runs[key] = count + 1
            with shared.lock:
                return shared.pool.warm_up(lambda: program(*static, *copied))
        try:
            made = self.capture(place, shared, program, static, copied)
        except Exception as error:
            results = program(*static, *copied)  # where this raises, the program is wrong
            self.fail(error)
            return results
        self.captured[key] = made
        return made.run(copied)

    def capture(
        self, place: Place, shared: SharedPool, program: Program, static: Tensors, copied: Tensors
    ) -> Captured:
        """Capture ``program``.

        :raises NotCaptured: if inputs or results share memory, so that they cannot be copied.
        """
        # Memory that is made in inference mode cannot be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            inputs = [like(x) for x in copied]
            if any(map(overlaps, copied)):
                raise NotCaptured("elements of an input share memory")
            for mine, given in zip(inputs, copied, strict=True):
                distinct(mine).copy_(distinct(given))
        try:
            with shared.lock:
                replay, results = shared.pool.capture(lambda: program(*static, *inputs))
        # An interrupt, too, leaves memory of an unfinished capture in the pool.
        except BaseException:
            self.owner.forget(place)
            raise
        if any(map(overlaps, results)) or not apart(results, (*static, *inputs)):
            raise NotCaptured("results share memory")
        return Captured(self.owner.graphs, shared, replay, [distinct(x) for x in inputs], results)

    def note_full(self) -> None:
        """Warn once that the segment has its maximum of graphs."""
        if self.plain or self.full:
            return
        self.full = True
        count = self.owner.options.graphs
        self.say(
            f"a segment of a program has {count} graphs, each for inputs of certain shapes and "
            "for parameters at certain addresses, and runs without one for others; [tool.tj."
            f"cudagraph] graphs = {count} is the limit",
            None,
        )

    def fail(self, error: Exception) -> None:
        """Disable graphs for this segment, and warn with the reason.

        :raises PluginError: in strict mode.
        """
        self.plain = True
        self.captured.clear()
        self.say(
            f"a segment of a program runs without a CUDA graph, since it cannot be captured: "
            f"{_reason(error)}",
            error,
        )

    def say(self, text: str, error: Exception | None) -> None:
        """Warn, or raise in strict mode if there is an ``error``.

        :raises PluginError: in strict mode, for an ``error``.
        """
        if error is not None and self.owner.options.strict:
            raise PluginError(text, hint='leave it out with [tool.tj] disable = ["cudagraph"]')
        warnings.warn(TjWarning(f"tj: {text}"), stacklevel=2)


def _reason(error: BaseException) -> str:
    """The first error of a chain, and the call that it comes from: the end of a capture raises
    another.
    """
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    first = str(error).partition("\n")[0]
    where = next((note for note in notes(error) if note.startswith("tj: ")), "")
    where = "; " + where.removeprefix("tj: ").replace("\n  at", " at") if where else ""
    return f"{type(error).__name__}: {first}{where}"


def _key(static: Tensors, copied: Tensors) -> Hashable:
    """Key of a graph: metadata of all inputs, and the addresses of static ones."""
    return (
        # Of lists, which are faster than generators: this runs in each call.
        tuple([(x.data_ptr(), x.shape, x.stride(), x.dtype, x.device) for x in static]),
        tuple([(x.shape, x.stride(), x.dtype, x.device) for x in copied]),
    )

"""Finished programs that are kept on disk, for processes that compile the same ones later.

A finished program has the results of the passes after FUNCTIONAL: the traces, the regions, the
claims, and transforms' payloads to restore their wrappers. Its key is made of the traces before
these passes, and of everything else that the passes depend on. Compiled regions are kept apart
(`tj_core.compile.kept_regions`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.compile.kept_regions import are_among
from tj_core.contract.fusion import FusionRegion
from tj_core.errors import PluginError
from tj_core.ir.proxy import Dim, NumberProxy, SymDim
from tj_core.ir.sizes import size_symbols
from tj_core.passes.claim_record import ClaimRecord
from tj_core.passes.fuse.fuse import FusedTrace
from tj_core.passes.fuse.layouts import Choice
from tj_core.text.encoding import NotPlainError, decoded, encoded

if TYPE_CHECKING:
    from tj_core.compile.transforms import Ranked, Transform
    from tj_core.contract.executors import Executor
    from tj_core.contract.sizes import ProgramSizes
    from tj_core.disk import Entries
    from tj_core.ir.stage import Stage
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.trace import Notation, Trace
    from tj_core.text.language import Language

__all__ = ["Finished", "KeptPrograms", "Shown", "implementations"]

_Say = Callable[[], "str | None"]

MOST = 512
"""Number of programs in a folder; one of a large model takes some hundred kilobytes."""


@dataclass(frozen=True)
class Shown:
    """The intermediate traces and the claims of a program, which are only shown to people."""

    traces: tuple[Trace, ...]
    claims: tuple[ClaimRecord, ...]


@dataclass(frozen=True)
class Finished:
    """A finished program: claimed calls and regions.

    ``said`` are names of transforms with their payloads for `Transform.restore`; ``assumed`` the
    conditions on sizes that became guards; ``reached`` the stages on the way. ``shown`` reads the
    traces and claims.
    """

    fused: FusedTrace
    said: tuple[tuple[str, Any], ...]
    assumed: tuple[str, ...]
    reached: frozenset[Stage]
    shown: Callable[[], Shown]


@dataclass
class KeptPrograms:
    """The finished programs in ``entries``, of a session with ``executors`` and ``transforms``.

    ``session`` returns a text of everything that the session's compilations depend on; None if
    unknown: nothing is kept then. ``libraries`` returns a text of the libraries of an executor that
    fuses, for one without a fingerprint.
    """

    entries: Entries
    executors: tuple[Executor, ...]
    transforms: tuple[Transform, ...]
    language: Language
    session: Callable[[], str | None]
    libraries: Callable[[Executor], str | None] = lambda executor: None
    lost: set[str] = field(default_factory=set)

    def key(
        self,
        trace: Trace,
        before: Sequence[Trace],
        transforms: Sequence[Ranked],
        executors: Sequence[Executor],
        sizes: ProgramSizes | None,
        more: object,
    ) -> str | None:
        """The key of a program; None if the program cannot be kept.

        ``trace`` is the trace to compile; ``before`` and ``more`` determine it. ``transforms`` and
        ``executors`` are those of the compilation, ``sizes`` its symbolic sizes.
        """
        own = are_among([r.transform for r in transforms], self.transforms)
        if not own or not are_among(executors, self.executors):
            return None
        surroundings = self.surroundings(trace, executors)
        if surroundings is None:
            return None
        symbols: set[str] = set()
        try:
            # Without the history: it has the times of passes, which differ from run to run.
            text = encoded(tuple(before), symbols, self.language.runtime, history=False)
        except NotPlainError:
            return None
        # Passes may decide on the symbols of numbers as on those of sizes.
        for p in trace.inputs:
            if isinstance(p, NumberProxy) and p.expr:
                symbols.update(size_symbols(p.expr))
        known: str | None = ""
        if symbols:
            known = sizes.known(sorted(symbols)) if sizes is not None else None
        if known is None:
            return None
        names = [r.transform.name for r in transforms], [e.name for e in executors]
        return _digest(surroundings, repr(names), repr(more), known, text)

    def surroundings(self, trace: Trace, executors: Sequence[Executor]) -> str | None:
        """A text of everything else that compiling ``trace`` depends on; None if unknown."""
        symbols = {call.symbol: None for call in trace.walk()}
        says: list[_Say] = [self.session, functools.partial(self.language.fingerprint, [*symbols])]
        for executor in executors:
            if executor.fusion is not None:
                # Its regions are compiled again; which calls it takes may be up to its libraries.
                libraries = functools.partial(self.libraries, executor)
                says.append(executor.fusion.fingerprint or libraries)
            if executor.fingerprint is not None:
                says.append(executor.fingerprint)
        try:
            said = [say() for say in says]
        except Exception as error:  # a plugin's fingerprint failed: compile without a key
            self.entries.warn("finished programs are not kept: a fingerprint failed", error)
            return None
        return None if None in said else "\n".join(map(str, said))

    def find(self, key: str, sizes: ProgramSizes | None) -> Finished | None:
        """The program under ``key``, with its symbols from ``sizes``; None if there is none."""
        text = self.entries.get(key) if key not in self.lost else None
        if text is None:
            return None
        try:
            dim = SymDim if sizes is None else sizes.dim
            return _read(text, self.language, self.executors, dim)
        except Exception as error:  # the program is compiled, and kept again
            self.lose(key, error)
            return None

    def lose(self, key: str, error: Exception) -> None:
        """Warn that the entry under ``key`` cannot be used, and ignore it from now on."""
        self.lost.add(key)
        self.entries.warn("a finished program cannot be used, and is compiled again", error)

    def keep(
        self, key: str, finished: Finished, before: Trace, executors: Sequence[Executor]
    ) -> None:
        """Store a program, made of ``before``, under ``key``, if it can be serialised.

        Fingerprints are asked for again, since the compilation may have made those of ``executors``
        unknown.
        """
        trace = finished.fused.trace
        if self.surroundings(before, executors) is None:
            return
        try:
            text = _written(finished)
        except NotPlainError:
            return
        title = f"{trace.name}, {len(trace.calls)} calls, {len(finished.fused.regions)} regions"
        self.entries.put(key, text, title)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _written(finished: Finished) -> str:
    fused, shown = finished.fused, finished.shown()
    runs = {
        "trace": fused.trace,
        "regions": tuple(map(_region, fused.regions)),
        "taken": {name: (c.executor, c.strides) for name, c in fused.taken.items()},
        "said": finished.said,
        "assumed": finished.assumed,
        "reached": tuple(sorted(finished.reached)),
    }
    claims = tuple(
        (r.call, r.symbol, r.source, r.executor, r.declined, r.depth, r.fused) for r in shown.claims
    )
    # The key exists only if symbols may be kept: so no names of symbols are needed here.
    values = fused.trace.language.runtime
    # In two texts: traces and claims are for show, and decoded only where somebody looks.
    parts = (runs, (shown.traces, claims))
    return " ".join(_packed(encoded(part, set(), values)) for part in parts)


def _region(found: tuple[Symbol, FusionRegion]) -> tuple[Any, ...]:
    symbol, region = found
    # Keys of dicts are strings in what `encoded` takes.
    strides = {str(i): s for i, s in region.strides.items()}
    hosted = tuple(region.implementations)
    return (
        symbol,
        region.body,
        region.key,
        region.backward,
        tuple(sorted(region.flexible)),
        strides,
        hosted,
        region.source,
        {str(i): place for i, place in region.overwritten.items()},
    )


def _read(
    text: str, language: Notation, executors: Sequence[Executor], dim: Callable[[str], Dim]
) -> Finished:
    first, _, rest = text.partition(" ")
    runs = decoded(_unpacked(first), language, dim)
    regions = tuple(_restored(row, language, executors) for row in runs["regions"])
    taken = {name: Choice(*choice) for name, choice in runs["taken"].items()}

    def shown() -> Shown:
        traces, claims = decoded(_unpacked(rest), language, dim)
        return Shown(traces, tuple(ClaimRecord(*row) for row in claims))

    fused = FusedTrace(runs["trace"], regions, taken)
    said, assumed, reached = runs["said"], runs["assumed"], frozenset(runs["reached"])
    return Finished(fused, said, assumed, reached, functools.cache(shown))


def _restored(
    row: tuple[Any, ...], language: Notation, executors: Sequence[Executor]
) -> tuple[Symbol, FusionRegion]:
    symbol, body, key, backward, flexible, strides, hosted, source, overwritten = row
    region = FusionRegion(
        body,
        key,
        language,
        backward,
        frozenset(flexible),
        {int(i): s for i, s in strides.items()},
        {s: _implementation(s, executors) for s in hosted},
        source,
        {int(i): place for i, place in overwritten.items()},
    )
    return symbol, region


def implementations(
    fused: FusedTrace, executors: Sequence[Executor]
) -> Mapping[Symbol, Callable[..., Any]]:
    """The implementations of claimed symbols, without those of regions."""
    owners = {e.name for e in executors if not e.fallback}
    found = {call.symbol for call in fused.trace.walk_programs() if call.executor in owners}
    regions = {symbol for symbol, _ in fused.regions}
    return {symbol: _implementation(symbol, executors) for symbol in found - regions}


def _implementation(symbol: Symbol, executors: Sequence[Executor]) -> Callable[..., Any]:
    owner = next((e for e in executors if e.name == symbol.namespace), None)
    found = owner.implementation(symbol) if owner is not None else None
    if found is None:
        raise PluginError(f"nothing runs {symbol}")
    return found


def _packed(text: str) -> str:
    # Level 1 is the fastest, and a call waits meanwhile. An entry is text, hence base 64.
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode("ascii")


def _unpacked(text: str) -> str:
    return zlib.decompress(base64.b64decode(text, validate=True)).decode()

"""Memo of expansions, so that a layer repeated thirty times is expanded once."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tj_core.extend import PLAIN_CONTEXT, Context, ParseError, TensorProxy

from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.derive import Derivation, Slot, derive
from tj_torch.ops.expansion.expander import Expander
from tj_torch.ops.expansion.expansion import Expansion
from tj_torch.ops.memo.instance import derivation_instance, instance
from tj_torch.ops.memo.key import Unkeyable, call_key, known_of, tangents_key
from tj_torch.ops.settings.modes import Modes
from tj_torch.ops.sizes.program import Sizes

__all__ = ["Memo"]

R = TypeVar("R", Expansion, Derivation)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Results for one key: expansions, derivations, or the reason why there is none.

    With symbolic sizes there may be several, with different guards. ``alive`` are the objects
    whose ids are in the key.
    """

    results: tuple[Expansion | Derivation | str, ...]
    alive: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call to expand, its key (None if it has none), and the symbols that the key numbers."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    context: Context
    sizes: Sizes
    key: tuple[Any, ...] | None = None
    alive: tuple[Any, ...] = ()
    symbols: tuple[str, ...] = ()


class Memo:
    """Expansions of a session; beyond its capacity, the least recently used are dropped.

    ``hits`` and ``misses`` count calls of `expand` and `derive`, ``seconds`` those spent on misses.
    A memo of capacity 0 keeps nothing, but counts.
    """

    __slots__ = (
        "_entries",
        "_latest",
        "_modes",
        "capacity",
        "expander",
        "hits",
        "misses",
        "seconds",
    )

    def __init__(self, capacity: int = 4096, expander: Expander | None = None) -> None:
        self.capacity = capacity
        self.expander = expander or Expander()
        self.hits = 0
        self.misses = 0
        self.seconds = 0.0
        self._entries: OrderedDict[tuple[Any, ...], _Entry] = OrderedDict()
        self._modes: dict[Modes, int] = {}
        self._latest: tuple[Modes | None, int] = (None, 0)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Drop all expansions; the counts stay."""
        self._entries.clear()

    def expand(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        context: Context = PLAIN_CONTEXT,
        modes: Modes | None = None,
        sizes: Sizes | None = None,
        value: Any = None,
    ) -> Expansion:
        """`Expander.expand` through the memo, adapted to the program of ``sizes``.

        ``modes`` is the current snapshot, made if not given; ``value`` the call's result at
        capture, see `instance`.

        :raises CannotExpand: if it cannot be expanded; kept in the memo.
        :raises ExpansionError: if PyTorch raises for these arguments; not kept.
        """
        return self._expanded(self._keyed(fn, args, kwargs, context, modes, sizes), value)

    def expand_once(
        self, fn: Callable[..., Any], args: tuple[Any, ...], context: Context, sizes: Sizes
    ) -> Expansion:
        """`expand` for a function that is called once: nothing is kept."""
        return self._expanded(_Call(fn, args, {}, context, sizes), None)

    def _expanded(self, call: _Call, value: Any) -> Expansion:
        def make() -> Expansion:
            return self.expander.expand(call.fn, call.args, call.kwargs, call.context, call.sizes)

        return self._brought(call, make, instance, value)

    def derive(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        context: Context = PLAIN_CONTEXT,
        modes: Modes | None = None,
        sizes: Sizes | None = None,
        *,
        tangents: Mapping[Slot, TensorProxy],
        create_graph: bool = False,
        value: Any = None,
    ) -> Derivation:
        """`derive` through the memo, adapted to the program. Arguments as for `expand`.

        :raises CannotExpand: if it cannot be expanded; kept in the memo.
        :raises ExpansionError: if PyTorch raises for these arguments; not kept.
        """
        call = self._keyed(fn, args, kwargs, context, modes, sizes)
        if call.key is not None:
            key = (*call.key, *tangents_key(tangents, call.symbols), create_graph)
            call = replace(call, key=key)

        def make() -> Derivation:
            return derive(
                self.expander,
                call.fn,
                call.args,
                call.kwargs,
                call.context,
                tangents=tangents,
                create_graph=create_graph,
                sizes=call.sizes,
            )

        return self._brought(call, make, derivation_instance, value)

    def _keyed(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]],
        context: Context,
        modes: Modes | None,
        sizes: Sizes | None,
    ) -> _Call:
        sizes = sizes or Sizes()
        pairs = kwargs if isinstance(kwargs, dict) else dict(kwargs)
        if not self.capacity:
            return _Call(fn, args, pairs, context, sizes)
        snapshot = modes or Modes.current()
        if snapshot is not self._latest[0]:  # hashing a snapshot costs more than the rest of a hit
            self._latest = snapshot, self._modes.setdefault(snapshot, len(self._modes))
        number = self._latest[1]
        try:
            key, alive, symbols = call_key(fn, args, pairs, context, number)
        except Unkeyable:
            return _Call(fn, args, pairs, context, sizes)
        if symbols:
            key = (*key, *known_of(symbols, sizes))
        return _Call(fn, args, pairs, context, sizes, key, alive, symbols)

    def _brought(
        self, call: _Call, make: Callable[[], R], bring: Callable[..., R], value: Any
    ) -> R:
        """Result for ``call``, from the memo or by ``make``, adapted by ``bring``."""
        with _refusing():
            found = self._recall(call, make)
            names = call.symbols or found.symbols
            return bring(found, (call.args, call.kwargs), names, call.sizes, value)

    def _recall(self, call: _Call, make: Callable[[], R]) -> R:
        """Result for ``call`` from the memo, else by ``make``; counts hits and misses."""
        found = self._known(call)
        if found is None:
            return self._miss(call, make)
        self.hits += 1
        if isinstance(found, str):
            raise CannotExpand(found)
        return found  # type: ignore[return-value]

    def _known(self, call: _Call) -> Expansion | Derivation | str | None:
        """Result for ``call`` in the memo whose guards hold, else None."""
        entry = self._entries.get(call.key) if call.key is not None else None
        if entry is None:
            return None
        for result in entry.results:
            if isinstance(result, str) or not result.guards or _holds(result, call):
                self._entries.move_to_end(call.key)  # type: ignore[arg-type]
                return result
        return None

    def _miss(self, call: _Call, make: Callable[[], R]) -> R:
        self.misses += 1
        start = time.perf_counter()
        try:
            result = make()
        except CannotExpand as error:
            if not call.symbols:  # with symbols, it may have failed for these sizes alone
                self._remember(call, error.reason)
            raise
        finally:
            self.seconds += time.perf_counter() - start
        if not result.captured:  # a tensor from a closure may be another one next time
            self._remember(call, result)
        return result

    def _remember(self, call: _Call, result: Expansion | Derivation | str) -> None:
        if call.key is None:
            return
        known = self._entries.get(call.key)
        results = (result, *known.results[: VARIANTS - 1]) if known else (result,)
        self._entries[call.key] = _Entry(results, call.alive)
        if len(self._entries) > self.capacity:
            self._entries.popitem(last=False)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raise `CannotExpand` for a `ParseError`, from sizes that cannot be expressed."""
    try:
        yield
    except ParseError as error:
        raise CannotExpand(error.message) from error


VARIANTS = 8
"""Most expansions with different guards per key."""


def _holds(result: Expansion | Derivation, call: _Call) -> bool:
    names = dict(zip(result.symbols, call.symbols, strict=True))
    return call.sizes.holds(result.guards, names)

"""The memo: expansions by call, so that a layer repeated thirty times is expanded once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tj_core.proxy import Proxy, TensorProxy
from tj_core.symbol import PLAIN_CONTEXT, Context
from tj_core.tree import map_tree

from tj_torch.dialect.derive import Derivation, Slot, derive
from tj_torch.dialect.errors import CannotExpand
from tj_torch.dialect.expansion import Expander, Expansion
from tj_torch.dialect.memokey import Unkeyable, call_key
from tj_torch.dialect.modes import Modes

__all__ = ["Memo", "instantiate"]

R = TypeVar("R", Expansion, Derivation)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a call's expansion or derivation came to, and the objects its key knows by their ids."""

    result: Expansion | Derivation | str
    alive: tuple[Any, ...]


class Memo:
    """The expansions of a session, the least recently used forgotten first.

    ``hits`` and ``misses`` count calls of `expand`, ``seconds`` those spent on misses. A memo of
    capacity 0 remembers nothing, and counts.
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
        """Forget all expansions; the counts stay."""
        self._entries.clear()

    def expand(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        context: Context = PLAIN_CONTEXT,
        modes: Modes | None = None,
    ) -> Expansion:
        """As `Expander.expand`, remembered. ``modes`` is the current snapshot, made if not given.

        :raises CannotExpand: remembered, too.
        :raises ExpansionError: every time it is found.
        """
        key, alive = self._key(fn, args, kwargs, context, modes)
        return self._recall(key, alive, lambda: self.expander.expand(fn, args, kwargs, context))

    def derive(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        context: Context = PLAIN_CONTEXT,
        modes: Modes | None = None,
        *,
        tangents: Mapping[Slot, TensorProxy],
        create_graph: bool = False,
    ) -> Derivation:
        """As `derive`, remembered. ``modes`` as for `expand`.

        :raises CannotExpand: remembered, too.
        :raises ExpansionError: every time it is found.
        """
        key, alive = self._key(fn, args, kwargs, context, modes)
        if key is not None:
            given = tuple((s, p.shape, p.strides, p.dtype, p.device) for s, p in tangents.items())
            key = (*key, given, create_graph)

        def make() -> Derivation:
            return derive(
                self.expander,
                fn,
                args,
                kwargs,
                context,
                tangents=tangents,
                create_graph=create_graph,
            )

        return self._recall(key, alive, make)

    def _key(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
        context: Context,
        modes: Modes | None,
    ) -> tuple[tuple[Any, ...] | None, tuple[Any, ...]]:
        if not self.capacity:
            return None, ()
        snapshot = modes or Modes.current()
        if snapshot is not self._latest[0]:  # hashing one is what a hit would mostly cost
            self._latest = snapshot, self._modes.setdefault(snapshot, len(self._modes))
        number = self._latest[1]
        try:
            pairs = kwargs if not kwargs or isinstance(kwargs, dict) else dict(kwargs)
            return call_key(fn, args, pairs, context, number)
        except Unkeyable:
            return None, ()

    def _recall(
        self, key: tuple[Any, ...] | None, alive: tuple[Any, ...], make: Callable[[], R]
    ) -> R:
        """What is remembered under ``key``, else what ``make`` makes."""
        entry = self._entries.get(key) if key is not None else None
        if entry is None:
            return self._miss(key, alive, make)
        self.hits += 1
        self._entries.move_to_end(key)  # type: ignore[arg-type]
        if isinstance(entry.result, str):
            raise CannotExpand(entry.result)
        return entry.result  # type: ignore[return-value]

    def _miss(
        self, key: tuple[Any, ...] | None, alive: tuple[Any, ...], make: Callable[[], R]
    ) -> R:
        self.misses += 1
        start = time.perf_counter()
        try:
            result = make()
        except CannotExpand as error:
            self._remember(key, error.reason, alive)
            raise
        finally:
            self.seconds += time.perf_counter() - start
        if not result.captured:  # else the tensor of a closure may be another one next time
            self._remember(key, result, alive)
        return result

    def _remember(
        self,
        key: tuple[Any, ...] | None,
        result: Expansion | Derivation | str,
        alive: tuple[Any, ...],
    ) -> None:
        if key is None:
            return
        self._entries[key] = _Entry(result, alive)
        if len(self._entries) > self.capacity:
            self._entries.popitem(last=False)


def instantiate(expansion: Expansion, fresh: Callable[[int], str]) -> Any:
    """The outputs of ``expansion`` for one call, the i-th proxy called ``fresh(i)``.

    An output that is one of the arguments has a name of its own; the effects say what it is.
    """
    count = iter(range(1 << 30))
    return map_tree(lambda p: p.replace(name=fresh(next(count))), expansion.outputs, Proxy)

"""The order in which executors are asked: the project's, or the one that a call gives."""

from __future__ import annotations

from collections.abc import Sequence

from tj_core.contract.executors import Executor
from tj_core.host.config import REST
from tj_core.host.naming import named

__all__ = ["executor_order"]


def executor_order(
    wanted: Sequence[str | Executor], every: Sequence[Executor]
) -> tuple[Executor, ...]:
    """``wanted`` executors in order, where ``"..."`` stands for the rest of ``every``.

    Every program must run: fallback executors come last if the list leaves them out.

    :raises ConfigError: if there is no executor of a name.
    """
    found = [
        x if isinstance(x, Executor) or x == REST else named(x, every, "executor") for x in wanted
    ]
    names = {x.name for x in found if isinstance(x, Executor)}
    rest = [e for e in every if e.name not in names]
    result: list[Executor] = []
    for item in found:
        result += [item] if isinstance(item, Executor) else rest
    return (*result, *(e for e in rest if e.fallback and e not in result))

"""Checks inside of an entry: where they do not hold, the entry runs another program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tj_core.extend import Compilation

__all__ = ["branch_on_state", "branch_on_values", "once"]

Check = Callable[[Sequence[Any]], bool]


def branch_on_values(
    compilation: Compilation,
    check: Check | None,
    make: Callable[[Sequence[Any]], Callable[..., Any]],
) -> Compilation:
    """``compilation`` that runs its function where ``check`` holds for the values, else another.

    For facts of inputs that Dynamo does not guard, such as which of them are leaves of autograd.
    ``make`` compiles the other function at its first call, with a check of its own.
    """
    if check is None:
        return compilation
    function = compilation.function
    other: list[Callable[..., Any]] = []

    def run(*values: Any) -> Any:
        if check(values):
            return function(*values)
        # Compiled when it is first needed: most programs are called with one kind of values.
        if not other:
            other.append(make(values))
        return other[0](*values)

    return replace(compilation, function=run)


def branch_on_state(
    function: Callable[..., Any], check: Callable[[], bool] | None, other: Callable[..., Any]
) -> Callable[..., Any]:
    """``function`` where ``check`` holds, else ``other``; ``function`` itself without a check."""
    if check is None:
        return function
    # Asked at each call: methods of the class may be replaced at any time.
    return lambda *args: (function if check() else other)(*args)


def once(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Function that is made by ``make`` at its first call, in one thread."""
    made: list[Callable[..., Any]] = []
    lock = threading.Lock()

    def computation(*args: Any) -> Any:
        with lock:
            if not made:
                made.append(make())
        return made[0](*args)

    return computation

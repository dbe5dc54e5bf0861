"""Choose between programs by which arguments are autograd leaves, which Dynamo does not guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tj_core.extend import Compilation

__all__ = ["while_leaves"]

Check = Callable[[Sequence[Any]], bool]


def while_leaves(
    compilation: Compilation,
    check: Check | None,
    make: Callable[[Sequence[Any]], Callable[..., Any]],
) -> Compilation:
    """``compilation`` that runs its function where ``check`` holds for the values, else another.

    ``make`` compiles the other at its first call; that one has a check of its own.
    """
    if check is None:
        return compilation
    function = compilation.function
    other: list[Callable[..., Any]] = []

    def run(*values: Any) -> Any:
        if check(values):
            return function(*values)
        if not other:
            other.append(make(values))
        return other[0](*values)

    return replace(compilation, function=run)

"""Inductor's part of a compilation behind calls, which gives way to calls that are answered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tj_torch.internal import give_way

from tj_inductor.adapter.names import TURNS
from tj_inductor.adapter.replacing import Replacement

__all__ = ["in_turns"]


def _giving_way(own: Callable[..., Any]) -> Callable[..., Any]:
    """``run_node`` of Inductor's interpreters, which run each operator, and each call in a loop."""

    def run_node(self: Any, n: Any) -> Any:
        give_way()
        return own(self, n)

    return run_node


_replacements = [
    Replacement(TURNS, owner, "run_node", _giving_way)
    for owner in ("GraphLowering", "InterpreterShim")
]


@contextlib.contextmanager
def in_turns() -> Iterator[None]:
    """A block in which Inductor gives way, in all threads that compile behind calls."""
    with contextlib.ExitStack() as stack:
        for replacement in _replacements:
            stack.enter_context(replacement.block())
        yield

"""Inductor's part of a compilation behind calls, which gives way to calls that are answered.

Compilers of C++ run with a lower priority than the process: where all cores are taken, a call would
wait until theirs has had its turn, several times as long as it takes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from tj_torch.internal import give_way, is_beside

from tj_inductor.adapter.names import TURNS
from tj_inductor.adapter.replacing import Replacement

__all__ = ["in_turns"]


def _giving_way(own: Callable[..., Any]) -> Callable[..., Any]:
    """``run_node`` of Inductor's interpreters, which run each operator, and each call in a loop."""

    def run_node(self: Any, n: Any) -> Any:
        give_way()
        return own(self, n)

    return run_node


LOWER = 10
"""Steps of priority below that of the process: a tenth of the time that a call gets."""


def _after_calls(own: Callable[..., Any]) -> Callable[..., Any]:
    """``_run_compile_cmd`` of Inductor, which runs a compiler."""

    def run(command: str, cwd: str) -> None:
        lower = is_beside() and os.name == "posix" and shutil.which("nice") is not None
        own(f"nice -n {LOWER} {command}" if lower else command, cwd)

    return run


_replacements = [
    *(
        Replacement(TURNS, owner, "run_node", _giving_way)
        for owner in ("GraphLowering", "InterpreterShim")
    ),
    Replacement(TURNS, "cpp_builder", "_run_compile_cmd", _after_calls),
]


@contextlib.contextmanager
def in_turns() -> Iterator[None]:
    """A block in which Inductor gives way, in all threads that compile behind calls."""
    with contextlib.ExitStack() as stack:
        for replacement in _replacements:
            stack.enter_context(replacement.block())
        yield

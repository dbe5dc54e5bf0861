"""The priority of C++ compilers in a compilation behind calls: lower than that of the process.

Where all cores are taken, a call would wait until a compiler has had its turn, several times as
long as it takes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from tj_torch.internal import is_beside

from tj_inductor.adapter.names import PRIORITY
from tj_inductor.adapter.replacing import Replacement

__all__ = ["lower_priority"]

LOWER = 10
"""Steps of priority below that of the process: a tenth of the time that a call gets."""


def _after_calls(own: Callable[..., Any]) -> Callable[..., Any]:
    """``_run_compile_cmd`` of Inductor, which runs a compiler."""

    def run(command: str, cwd: str) -> None:
        lower = is_beside() and os.name == "posix" and shutil.which("nice") is not None
        own(f"nice -n {LOWER} {command}" if lower else command, cwd)

    return run


lower_priority = Replacement(PRIORITY, "cpp_builder", "_run_compile_cmd", _after_calls).block
"""A block in which compilers have a lower priority, in the thread that compiles behind calls."""

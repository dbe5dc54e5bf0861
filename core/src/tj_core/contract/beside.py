"""Contexts for compilation in a thread beside the program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tj_core.contract.fields import FUNCTION, check_fields

__all__ = ["Beside"]

Enter = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Beside:
    """Contexts for compilation beside the program.

    The thread that compiles enters ``step`` for each region, to hold the locks of a compilation in
    a call, and leaves it between regions, so that calls can compile meanwhile. A call that runs
    while its kernels are compiled enters ``answering``, and the thread may wait for its end.
    """

    step: Enter = contextlib.nullcontext
    answering: Enter = contextlib.nullcontext

    def __post_init__(self) -> None:
        check_fields(self, step=FUNCTION, answering=FUNCTION)

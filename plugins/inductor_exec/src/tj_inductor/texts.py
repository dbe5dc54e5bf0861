"""Patterns in the texts of C++ kernels that Inductor writes."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["ENTRY", "before_kernel", "respelled", "with_wide_steps"]

ENTRY = re.compile(r'^extern "C"[^{;]*\bkernel\(', re.MULTILINE)
"""Start of the kernel's function."""


def before_kernel(source: str, functions: str) -> str:
    """Insert ``functions`` before the kernel ``source``, which has an `ENTRY`."""
    entry = ENTRY.search(source)
    assert entry is not None
    return source[: entry.start()] + functions + source[entry.start() :]


def respelled(source: str, changes: Iterable[tuple[re.Pattern[str], str]]) -> str:
    """``source`` with what each pattern finds replaced, one pattern after the other."""
    for spelling, becomes in changes:
        source = spelling.sub(becomes, source)
    return source


STEP = re.compile(r"(::arange\(\w+, )(-?\d+)\)")
"""The step between the elements of a vector, which is an ``int`` in PyTorch's headers."""


def with_wide_steps(source: str) -> str:
    """Multiply steps in 64 bits in the kernel ``source``: multiples of 10^9 overflow in 32."""
    return STEP.sub(r"\1static_cast<int64_t>(\2))", source)

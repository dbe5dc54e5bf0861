"""Patterns in the texts of C++ kernels that Inductor writes."""

from __future__ import annotations

import re

__all__ = ["ENTRY", "before_kernel"]

ENTRY = re.compile(r'^extern "C"[^{;]*\bkernel\(', re.MULTILINE)
"""Start of the kernel's function."""


def before_kernel(source: str, functions: str) -> str:
    """Insert ``functions`` before the kernel ``source``, which has an `ENTRY`."""
    entry = ENTRY.search(source)
    assert entry is not None
    return source[: entry.start()] + functions + source[entry.start() :]

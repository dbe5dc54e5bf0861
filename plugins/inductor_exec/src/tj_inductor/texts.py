"""Patterns in the texts of C++ kernels that Inductor writes."""

from __future__ import annotations

import re

__all__ = ["ENTRY"]

ENTRY = re.compile(r'^extern "C"[^{;]*\bkernel\(', re.MULTILINE)
"""Start of the kernel's function."""

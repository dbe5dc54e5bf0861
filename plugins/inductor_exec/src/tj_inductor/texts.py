"""The texts of C++ kernels, as Inductor writes them."""

from __future__ import annotations

import re

__all__ = ["ENTRY"]

ENTRY = re.compile(r'^extern "C"[^{;]*\bkernel\(', re.MULTILINE)
"""Where the function begins that a kernel is."""

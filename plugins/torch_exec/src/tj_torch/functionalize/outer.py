"""The call of a functional program in the program around it."""

from __future__ import annotations

from tj_core.extend import Symbol

__all__ = ["PROGRAM"]

PROGRAM = Symbol("tj", "program")
"""Call of the functional program in the outer one."""

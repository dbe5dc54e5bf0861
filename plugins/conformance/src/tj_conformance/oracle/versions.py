"""Programs that this version of PyTorch runs itself, and newer ones let tj capture.

They are compared with eager still; assertions about their traces do not hold in this version.
"""

from __future__ import annotations

from collections.abc import Iterable

from tj_torch.internal import (
    captures_functions_in_steps,
    captures_hooks_of_values,
    captures_writes_of_functions,
)

__all__ = ["left_to_this_version", "reasons_of_this_version"]

_FUNCTIONS = "a torch.autograd.Function is left to PyTorch: this PyTorch"
_WRITES = "a torch.autograd.Function is left to PyTorch: it writes an argument, which this PyTorch"
_HOOKS = "Compilation of intermediate hooks requires compiled autograd"


def reasons_of_this_version() -> tuple[str, ...]:
    """Prefixes of reasons of graph breaks that newer versions do not have; none in the newest."""
    found = (
        (_FUNCTIONS, captures_functions_in_steps),
        (_WRITES, captures_writes_of_functions),
        (_HOOKS, captures_hooks_of_values),
    )
    return tuple(reason for reason, captured in found if not captured())


def left_to_this_version(fallbacks: Iterable[object]) -> bool:
    """Check that one of ``fallbacks``, from `tj_core.stats`, is for such a reason."""
    said = [str(fallback) for fallback in fallbacks]
    return any(reason in text for reason in reasons_of_this_version() for text in said)

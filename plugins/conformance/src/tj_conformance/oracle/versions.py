"""What this version of PyTorch runs itself, and newer ones let tj capture.

Programs are compared with eager still; what is said of their traces does not hold there.
"""

from __future__ import annotations

from collections.abc import Iterable

from tj_torch.extend import captures_functions_in_steps, captures_hooks_of_values

__all__ = ["left_to_this_version", "reasons_of_this_version"]

_FUNCTIONS = "a torch.autograd.Function is left to PyTorch: this PyTorch"
_HOOKS = "Compilation of intermediate hooks requires compiled autograd"


def reasons_of_this_version() -> tuple[str, ...]:
    """How reasons of graph breaks begin that newer versions do not have; none in the newest."""
    found = ((_FUNCTIONS, captures_functions_in_steps), (_HOOKS, captures_hooks_of_values))
    return tuple(reason for reason, captured in found if not captured())


def left_to_this_version(fallbacks: Iterable[object]) -> bool:
    """Whether one of ``fallbacks``, as of `tj_core.stats`, is for such a reason."""
    said = [str(fallback) for fallback in fallbacks]
    return any(reason in text for reason in reasons_of_this_version() for text in said)

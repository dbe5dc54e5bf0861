"""What can go wrong when a call is expanded."""

from __future__ import annotations

import warnings
from pathlib import Path

import tj_core
from tj_core.extend import CannotExpandError, TjError, TjWarning

__all__ = [
    "WRITES_BACK",
    "CannotExpand",
    "ExpansionError",
    "InternalError",
    "MakesSubclass",
    "internal_error",
]


class CannotExpand(CannotExpandError):
    """A call works in PyTorch, but cannot be described by running it on fake tensors.

    Its result depends on data, it hands memory to the outside, or it uses a feature that
    functionalization lacks. Such a call is left whole. ``reason`` says which.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the call cannot be expanded: {reason}")
        self.reason = reason


WRITES_BACK = "its backward writes to what its forward was given, or returned"
"""The reason where that is so."""


class InternalError(CannotExpand):
    """Expanding a call failed through a mistake of tj's own. The cause is what was raised."""

    def warn(self) -> None:
        """Say so: the program runs all the same, with this call whole."""
        text = f"tj: {self.reason}; the call stays whole. Please report this."
        warnings.warn(TjWarning(text), stacklevel=3)


class MakesSubclass(Exception):
    """A call on plain tensors makes a tensor subclass."""


class ExpansionError(TjError):
    """The call itself is wrong: PyTorch raises for these arguments. The cause is what it raised."""


OURS = (str(Path(__file__).parent), str(Path(tj_core.__file__).parent))
CALLERS = frozenset({"call", "_dispatch", "__torch_dispatch__"})
"""Functions of ours that call PyTorch's, from where compiled code raises."""

MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What wrong Python code raises."""


def internal_error(error: Exception, name: str) -> InternalError | None:
    """``error``, raised while ``name`` was expanded, if it looks like a mistake in our own code."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not isinstance(error, MISTAKES):
        return None
    code = last.tb_frame.f_code
    if not code.co_filename.startswith(OURS) or code.co_name in CALLERS:
        return None
    what = f"{type(error).__name__}: {error} at {code.co_filename}:{last.tb_lineno}"
    return InternalError(f"internal error while expanding {name}: {what}")

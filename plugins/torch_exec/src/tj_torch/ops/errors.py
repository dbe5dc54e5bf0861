"""Errors of expansions."""

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

    Its result depends on data, it exposes memory, or it uses a feature that functionalization
    lacks, as ``reason`` tells. Such a call is not decomposed.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the call cannot be expanded: {reason}")
        self.reason = reason


WRITES_BACK = "its backward writes to what its forward was given, or returned"
"""Reason for a backward that writes to arguments or results of its forward."""


class InternalError(CannotExpand):
    """Expanding a call failed through a bug of tj's own, its ``__cause__``."""

    def warn(self) -> None:
        """Warn of the bug; the program still runs, with this call not decomposed."""
        text = f"tj: {self.reason}; the call stays whole. Please report this."
        warnings.warn(TjWarning(text), stacklevel=3)


class MakesSubclass(Exception):
    """A call on plain tensors makes a tensor of a subclass, ``kind``."""

    def __init__(self, kind: type) -> None:
        super().__init__(kind)
        self.kind = kind


class ExpansionError(TjError):
    """PyTorch raises for these arguments of the call, with the ``__cause__``."""


OURS = (str(Path(__file__).parent), str(Path(tj_core.__file__).parent))
CALLERS = frozenset({"call", "_dispatch", "__torch_dispatch__"})
"""Our functions that call PyTorch's: errors of C++ code appear to be raised there."""

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
"""Errors that buggy Python code raises."""


def internal_error(error: Exception, name: str, *folders: str) -> InternalError | None:
    """`InternalError` for ``error`` in the expansion of ``name``; None unless our code raised.

    Code in ``folders`` is ours, too.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not isinstance(error, MISTAKES):
        return None
    code = last.tb_frame.f_code
    if not code.co_filename.startswith((*OURS, *folders)) or code.co_name in CALLERS:
        return None
    what = f"{type(error).__name__}: {error} at {code.co_filename}:{last.tb_lineno}"
    return InternalError(f"internal error while expanding {name}: {what}")

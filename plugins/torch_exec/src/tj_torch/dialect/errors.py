"""What can go wrong when a call is expanded."""

from __future__ import annotations

from tj_core.errors import CannotExpandError, TjError

__all__ = ["CannotExpand", "ExpansionError"]


class CannotExpand(CannotExpandError):
    """A call works in PyTorch, but cannot be described by running it on fake tensors.

    Its result depends on data, it hands memory to the outside, or it uses a feature that
    functionalization lacks. Such a call is left whole. ``reason`` says which.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the call cannot be expanded: {reason}")
        self.reason = reason


class ExpansionError(TjError):
    """The call itself is wrong: PyTorch raises for these arguments. The cause is what it raised."""

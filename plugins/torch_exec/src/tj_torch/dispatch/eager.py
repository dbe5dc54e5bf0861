"""Jitted programs in a PyTorch that lacks what any program needs: each call is the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.adapter import inlined_as
from tj_torch.dispatch.fallbacks import fall_back_from

if TYPE_CHECKING:
    from tj_core.extend import CaptureError, Jitted

__all__ = ["Uncompiled"]


@dataclass(slots=True)
class Uncompiled:
    """Dispatcher of a program that is never captured, because of ``error``."""

    jitted: Jitted
    program: Callable[..., Any]
    error: CaptureError

    def take_call(self) -> Callable[..., Any]:
        """Make the callable, which warns once and runs the program."""
        jitted, program, error = self.jitted, self.program, self.error

        def call(*args: Any, **kwargs: Any) -> Any:
            fall_back_from(jitted, error)
            return program(*args, **kwargs)

        return inlined_as(call, program)

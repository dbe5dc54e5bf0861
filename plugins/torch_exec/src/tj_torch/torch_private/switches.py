"""PyTorch's switches for compilation: the stance, ``config.disable``, and the environment.

Dynamo is not imported to read them: before it is, nobody can have set one but the environment.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

__all__ = ["UNREAD", "Stances", "disabled", "disabled_for_good", "stances"]

_DYNAMO = "torch._dynamo"

Stances = Any
"""An object whose ``_stance`` is the stance: Dynamo's module, which binds it anew when it is set.

A stance has fields ``stance``, the name, and ``backend``, which takes the place of all others.
"""

UNREAD: Stances = types.SimpleNamespace(_stance=None)
"""The stances of a process that has not imported Dynamo, or whose PyTorch has none."""


def stances() -> Stances:
    """The object that has the stance of this process."""
    found = sys.modules.get(f"{_DYNAMO}.eval_frame")
    return found if hasattr(found, "_stance") else UNREAD


def disabled() -> str | None:
    """The switch by which nothing is to be compiled now: ``torch._dynamo.config.disable``."""
    config = sys.modules.get(f"{_DYNAMO}.config")
    if config is None:
        return _set("TORCH_COMPILE_DISABLE")
    return "torch._dynamo.config.disable" if getattr(config, "disable", False) else None


def disabled_for_good() -> str | None:
    """The switch by which a program that is jitted now is never compiled."""
    return _set("TORCHDYNAMO_DISABLE")


def _set(variable: str) -> str | None:
    return variable if os.environ.get(variable) == "1" else None

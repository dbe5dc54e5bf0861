"""tj: a compiler for PyTorch programs whose every capability is a plugin.

This facade holds the names a user types; plugin authors find theirs in `tj_core.extend`. Names
load when first used, so that importing tj is quick and discovers nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tj_core.api import explain, guards, jit, last_trace, last_traces, stats
    from tj_core.errors import TjError, TjWarning
    from tj_core.host.session import Session
    from tj_core.ir.stage import Stage
    from tj_core.ir.trace import Trace
    from tj_core.tagging import tag

__all__ = [
    "Session",
    "Stage",
    "TjError",
    "TjWarning",
    "Trace",
    "explain",
    "guards",
    "jit",
    "last_trace",
    "last_traces",
    "stats",
    "tag",
]

_HOMES = {
    "Session": "host.session",
    "Stage": "ir.stage",
    "TjError": "errors",
    "TjWarning": "errors",
    "Trace": "ir.trace",
    "explain": "api",
    "guards": "api",
    "jit": "api",
    "last_trace": "api",
    "last_traces": "api",
    "stats": "api",
    "tag": "tagging",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tj-core")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tj_core' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tj_core.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

"""tj: a compiler for PyTorch programs whose every capability is a plugin.

This facade holds the names a user types; plugin authors find theirs in `tj_core.extend`. Names
load when first used, so that importing tj is quick and discovers nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tj_core.api import jit
    from tj_core.errors import TjError, TjWarning
    from tj_core.host.session import Session
    from tj_core.ir.stage import Stage
    from tj_core.ir.trace import Trace
    from tj_core.looking.comparison import compare
    from tj_core.looking.pages import report
    from tj_core.looking.views import (
        diff,
        explain,
        guards,
        last_trace,
        last_traces,
        programs,
        stats,
        wait,
    )
    from tj_core.packages import export, load
    from tj_core.tagging import tag

__all__ = [
    "Session",
    "Stage",
    "TjError",
    "TjWarning",
    "Trace",
    "compare",
    "diff",
    "explain",
    "export",
    "guards",
    "jit",
    "last_trace",
    "last_traces",
    "load",
    "programs",
    "report",
    "stats",
    "tag",
    "wait",
]

_HOMES = {
    "Session": "host.session",
    "Stage": "ir.stage",
    "TjError": "errors",
    "TjWarning": "errors",
    "Trace": "ir.trace",
    "compare": "looking.comparison",
    "diff": "looking.views",
    "explain": "looking.views",
    "export": "packages",
    "guards": "looking.views",
    "jit": "api",
    "last_trace": "looking.views",
    "last_traces": "looking.views",
    "load": "packages",
    "programs": "looking.views",
    "report": "looking.pages",
    "stats": "looking.views",
    "tag": "tagging",
    "wait": "looking.views",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tj-core")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tj_core' has no attribute {name!r}")
    from tj_core.compile.collection import importing

    with importing():
        value = getattr(importlib.import_module(f"tj_core.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

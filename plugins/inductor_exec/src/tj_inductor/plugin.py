"""Hooks of tj-inductor, an executor that fuses. They import torch when called; this module does
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_inductor.options import Options

if TYPE_CHECKING:
    from tj_core.extend import Executor

TJ_PLUGIN_API = 1


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    return None if importlib.util.find_spec("torch") else "torch is not installed"


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_executors(options: Options) -> tuple[Executor, ...]:
    from tj_inductor.executor import inductor_executor

    return (inductor_executor(options),)

"""The plugin's hooks, for one executor. They import torch and numexpr when called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import hookimpl

if TYPE_CHECKING:
    from tj_core.extend import Executor

TJ_PLUGIN_API = 1


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    return None if importlib.util.find_spec("numexpr") else "numexpr is not installed"


@hookimpl
def tj_executors() -> tuple[Executor, ...]:
    from tj_example_fuser.executor import executor

    return (executor(),)

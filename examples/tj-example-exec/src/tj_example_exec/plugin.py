"""The plugin's hooks: the module that entry point ``example_exec`` of group ``tj`` names.

It imports the standard library and ``tj_core`` alone: it is loaded to list the plugins, also where
PyTorch or your kernel library is missing. Heavy imports are in the hooks.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from tj_core.extend import Executor, Tag, hookimpl

# The contract this plugin is written for: `tj_core.extend.PLUGIN_API` of that day, as a number.
TJ_PLUGIN_API = 1


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.example_exec]``.

    ``min_elements``: calls on tensors with fewer elements are left to others.
    """

    min_elements: int = 1

    def __post_init__(self) -> None:
        if self.min_elements < 1:
            raise ValueError(f"'min_elements' must be at least 1, not {self.min_elements}")


SKIP = Tag(
    "EXAMPLE_SKIP",
    "example_exec leaves operations on this value alone",
    through_views=True,  # a view of the value is still the value; the other defaults fit
)


@hookimpl
def tj_available() -> str | None:
    # A reason, not an exception: without a driver or a library the plugin is listed as unavailable.
    return None if importlib.util.find_spec("torch") else "PyTorch is not installed"


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_tags() -> tuple[Tag, ...]:
    return (SKIP,)


@hookimpl
def tj_executors(options: Options) -> tuple[Executor, ...]:
    from tj_example_exec.executor import example_executor

    return (example_executor(options.min_elements),)

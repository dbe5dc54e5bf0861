"""The plugin: gradients of traces.

Imports neither torch nor anything that does; the hooks do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from tj_core.records import Transform
    from tj_core.rules import RuleTable

TJ_PLUGIN_API = 1


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.autograd]``.

    ``memory_budget``: how much of the bytes that the forward would save for the backward it may
    save, from 1, where only cheap calls run again in the backward, to 0, where all do that can.
    """

    memory_budget: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.memory_budget <= 1:
            raise ValueError(f"memory_budget is {self.memory_budget}, not between 0 and 1")


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    from tj_autograd.builtin import rules

    return (rules(),)


@hookimpl
def tj_transforms(options: Options) -> tuple[Transform, ...]:
    from tj_autograd.transform import transforms

    return transforms(options)

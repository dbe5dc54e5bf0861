"""The plugin of tj-nvfuser with the reference in nvFuser's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import Executor, RuleTable, Transform, hookimpl
from tj_torch.extend import registered

from tj_nvfuser.executor import nvfuser_executor
from tj_nvfuser.options import Options
from tj_nvfuser.random import own_numbers
from tj_nvfuser.testing.names import TABLE
from tj_nvfuser.testing.reference import Reference

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Target

__all__ = ["ReferencePlugin"]


class ReferencePlugin:
    """tj-nvfuser for CPUs."""

    tj_name = "nvfuser_reference"

    def __init__(self, target: Target | None = None) -> None:
        self.target = target or Reference()

    @hookimpl
    def tj_options(self) -> type[Any]:
        """Options of tj-nvfuser."""
        return Options

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        """The private names of the reference."""
        return (registered(TABLE),)

    @hookimpl
    def tj_executors(self, options: Options) -> tuple[Executor, ...]:
        """The executor, with the target."""
        return (nvfuser_executor(options, self.target),)

    @hookimpl
    def tj_transforms(self, options: Options) -> tuple[Transform, ...]:
        """The transform of random calls, if the options ask for it."""
        return (own_numbers(self.target.devices),) if options.draws else ()

"""What a pass may use: the tables and registries of the session it runs in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.contract.executors import Executor
from tj_core.contract.expansion import Expand
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import RewriteRule, rewrite
from tj_core.ir.stage import Stage
from tj_core.ir.tags import TagRegistry
from tj_core.ir.trace import Trace

__all__ = ["PassContext"]


@dataclass(frozen=True, slots=True)
class PassContext:
    """Handed to every transform: its name and plugin; the session's tables, tags, executors.

    ``earlier`` are the traces that the passes before made, the acquired one first; ``produced`` the
    stages that some transform of this pipeline takes traces to. ``strict`` is the config's.
    """

    name: str
    plugin: str
    expand: RuleTable[Expand]
    tags: TagRegistry
    tables: dict[str, RuleTable[Any]]
    executors: Sequence[Executor] = ()
    earlier: tuple[Trace, ...] = ()
    produced: frozenset[Stage] = frozenset()
    strict: bool = False

    def rewrite(
        self,
        trace: Trace,
        rules: RuleTable[RewriteRule],
        *,
        into_bodies: bool = True,
        into_regions: bool = True,
    ) -> Trace:
        """`tj_core.edit.rewrite.rewrite` in this pass's name."""
        return rewrite(
            trace,
            rules,
            expand=self.expand,
            tags=self.tags,
            name=self.name,
            plugin=self.plugin,
            into_bodies=into_bodies,
            into_regions=into_regions,
        )

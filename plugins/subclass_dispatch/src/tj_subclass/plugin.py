"""The plugin: calls on tensor subclasses as calls on dense tensors.

Imports neither torch nor anything that does; the hooks do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import hookimpl

if TYPE_CHECKING:
    from typing import Any

    from tj_core.extend import RuleTable, Transform

TJ_PLUGIN_API = 1


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    return None if importlib.util.find_spec("torch") else "torch is not installed"


@hookimpl
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    from tj_subclass.kind import rules

    return (rules(),)


@hookimpl
def tj_transforms() -> tuple[Transform, ...]:
    from tj_subclass.joining import joining
    from tj_subclass.transform import lower_subclasses

    return (joining(), lower_subclasses())

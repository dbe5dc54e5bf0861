"""Hooks of tj-inductor, an executor that fuses. They import torch when called; this module does
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_inductor.options import Options

if TYPE_CHECKING:
    from tj_core.extend import Executor, Finding, RuleTable, Tag, Transform

TJ_PLUGIN_API = 1


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    return None if importlib.util.find_spec("torch") else "torch is not installed"


@hookimpl
def tj_lacking(cache_dir: str | None) -> str | None:
    from tj_torch.installation import Probed

    return Probed("tj-inductor", "tj_inductor").lacking(cache_dir)


@hookimpl
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    from tj_torch.extend import registered

    from tj_inductor.adapter.features import TABLE

    return (registered(TABLE),)


@hookimpl
def tj_findings() -> tuple[Finding, ...]:
    from tj_inductor.doctor import findings

    return findings()


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_tags() -> tuple[Tag, ...]:
    from tj_inductor.joined.editing import tag

    return (tag(),)


@hookimpl
def tj_transforms(options: Options) -> tuple[Transform, ...]:
    from tj_inductor.bags import with_ends
    from tj_inductor.counted import counting
    from tj_inductor.joined.transform import joining
    from tj_inductor.lists import separating
    from tj_inductor.numbers import as_tensors
    from tj_inductor.packed import packing

    return joining(), separating(), as_tensors(), packing(), counting(), with_ends()


@hookimpl
def tj_executors(options: Options) -> tuple[Executor, ...]:
    from tj_inductor.executor import inductor_executor

    return (inductor_executor(options),)

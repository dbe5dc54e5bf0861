"""Hooks of tj-autograd. They import torch when called; this module does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_autograd.options import Options

if TYPE_CHECKING:
    from tj_core.extend import RuleTable, Tag, Transform

TJ_PLUGIN_API = 1


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    from tj_autograd.joint.builtin import rules
    from tj_autograd.joint.recordings import rules as recorded
    from tj_autograd.joint.repeatable import rules as repeatable
    from tj_autograd.joint.rules import plugins_rules
    from tj_autograd.run.reads import rules as reads
    from tj_autograd.split.cheap import rules as cheap

    return (plugins_rules(), rules(), recorded(), cheap(), repeatable(), reads())


@hookimpl
def tj_tags() -> tuple[Tag, ...]:
    from tj_autograd.joint.derivation_calls import ONCE
    from tj_autograd.split.deliveries import GRADIENT_GROUP

    return (ONCE, GRADIENT_GROUP)


@hookimpl
def tj_transforms(options: Options) -> tuple[Transform, ...]:
    from tj_autograd.transform import transforms

    return transforms(options)

"""Hooks of tj-onednn, an executor of matrix products. They import torch when called; this module
does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_onednn.options import Options

if TYPE_CHECKING:
    from tj_core.extend import Executor, RuleTable, Tag, Transform

TJ_PLUGIN_API = 1

TJ_PRIORITY = 10  # asked before executors that fuse, in whose regions its calls may stand


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    if not importlib.util.find_spec("torch"):
        return "torch is not installed"
    from tj_torch.installation import is_built_with_onednn

    if is_built_with_onednn():
        return None
    from tj_onednn.availability import unavailable

    return unavailable()


@hookimpl
def tj_lacking(cache_dir: str | None) -> str | None:
    from tj_torch.installation import Probed

    return Probed("tj-onednn", "tj_onednn").lacking(cache_dir)


@hookimpl
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    from tj_torch.extend import registered

    from tj_onednn.names import TABLE

    return (registered(TABLE),)


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_tags(options: Options) -> tuple[Tag, ...]:
    from tj_onednn import freezing
    from tj_onednn.int8 import transform

    frozen = (freezing.tag(),) if options.freeze else ()
    return (*frozen, transform.tag()) if options.rounds else frozen


@hookimpl
def tj_transforms(options: Options) -> tuple[Transform, ...]:
    from tj_onednn.freezing import freezing
    from tj_onednn.int8.transform import quantising

    frozen = (freezing(),) if options.freeze else ()
    return (*frozen, quantising(options)) if options.rounds else frozen


@hookimpl
def tj_executors(options: Options) -> tuple[Executor, ...]:
    from tj_onednn.executor import onednn_executors
    from tj_onednn.int8.executor import int8_executor

    products = onednn_executors(options)
    return (int8_executor(), *products) if options.rounds else products

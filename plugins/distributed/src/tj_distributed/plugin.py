"""The plugin: PyTorch's data parallel modules, jitted; ranks that agree on their collectives.

Imports neither torch nor anything that does; the hooks do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_distributed.options import Options

if TYPE_CHECKING:
    from tj_core.extend import Dialect, RuleTable, Transform

TJ_PLUGIN_API = 1


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    return None if importlib.util.find_spec("torch") else "torch is not installed"


@hookimpl
def tj_lacking(cache_dir: str | None) -> str | None:
    from tj_torch.installation import Probed

    return Probed("tj-distributed", "tj_distributed").lacking(cache_dir)


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_rule_tables(options: Options) -> tuple[RuleTable[Any], ...]:
    from tj_torch.extend import registered

    from tj_distributed.facts import repeatable, started
    from tj_distributed.names import TABLE
    from tj_distributed.schedule.gloo import gathers
    from tj_distributed.wrappers import rules

    own = (registered(TABLE), rules(), repeatable(), started())
    return (*own, gathers()) if options.overlap else own


@hookimpl
def tj_dialects(options: Options) -> tuple[Dialect, ...]:
    from tj_distributed.groups import dialect

    return (dialect(options),)


@hookimpl
def tj_transforms(options: Options) -> tuple[Transform, ...]:
    from tj_distributed.merge import merge
    from tj_distributed.names import AGREE, OVERLAP, look
    from tj_distributed.overlap import overlap
    from tj_distributed.redistributions import redistributions
    from tj_distributed.schedule.transforms import schedule
    from tj_distributed.transform import announce

    made = [merge()]
    if options.merge_redistributions:
        made.append(redistributions())
    if look(AGREE):
        made += schedule(options)
        if options.agree != "off":
            made.append(announce())
    if options.overlap and look(OVERLAP):
        made.append(overlap())
    return tuple(made)

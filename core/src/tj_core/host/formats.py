"""Forms of packages of the installed plugins, found without starting them.

A package runs without a session: of each plugin only the module is imported, which imports nothing
heavy, and one hook is asked. Plugins that the project disables are left out.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tj_core.contract.packages import PackageFormat
from tj_core.errors import PluginError, how_to_disable
from tj_core.host.config import load_config
from tj_core.host.discovery import discover
from tj_core.host.plugins import PluginManager

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor

__all__ = ["package_formats", "plugin_executors"]

HOOK = "tj_package_formats"


def package_formats() -> Iterator[PackageFormat]:
    """The records of all plugins that have some.

    :raises PluginError: if the hook of a plugin returns something else.
    """
    disabled = load_config(None, {}).core.disable or ()
    for found in discover():
        if found.name in disabled:
            continue
        module, _, attribute = found.target.partition(":")
        try:
            plugin = importlib.import_module(module)
            plugin = functools.reduce(getattr, filter(None, attribute.split(".")), plugin)
        except Exception:  # a plugin that cannot be imported has no form; `tj plugins` tells of it
            continue
        hook = getattr(plugin, HOOK, None)
        for record in hook() if hook is not None else ():
            if not isinstance(record, PackageFormat):
                raise PluginError(
                    f"{found}: {HOOK} must return PackageFormat records",
                    hint=how_to_disable(found.name),
                )
            yield record


def plugin_executors(plugins: Collection[str]) -> dict[str, Executor]:
    """The executors of ``plugins`` by name, with the project's options, for a package that runs.

    :raises PluginError: if one is not installed, or not available on this machine.
    """
    manager = PluginManager(load_config(None, {"plugins": sorted(plugins)}))
    found = manager.executors()
    return {e.name: replace(e, provider=manager.identity(plugin)) for plugin, e in found}

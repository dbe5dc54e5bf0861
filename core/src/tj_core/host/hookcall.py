"""Calls of one hook of one plugin, with observers, and errors that name the plugin."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.errors import PluginError, how_to_disable

if TYPE_CHECKING:
    import pluggy

    from tj_core.host.discovery import Found

__all__ = ["HookCall", "Observer", "call_hook", "print_call"]


@dataclass(frozen=True, slots=True)
class HookCall:
    """The record of one call of a hook: its result or its error, and its seconds."""

    plugin: str
    hook: str
    result: object
    error: Exception | SystemExit | None
    seconds: float


Observer = Callable[[HookCall], None]


def print_call(call: HookCall) -> None:
    """Print ``call`` to stderr; the observer behind ``TJ_TRACE_HOOKS``."""
    outcome = repr(call.result) if call.error is None else f"raised {call.error!r}"
    print(
        f"tj: {call.plugin}.{call.hook} -> {outcome} ({1e3 * call.seconds:.2f} ms)",
        file=sys.stderr,
    )


def call_hook(
    manager: pluggy.PluginManager,
    hook: str,
    found: Found,
    arguments: Mapping[str, Any],
    observers: tuple[Observer, ...] = (),
) -> object:
    """Call the implementation of ``hook`` of the plugin ``found`` in ``manager``.

    Wrappers of other plugins run around it. Returns None if the plugin does not implement the
    hook.

    :raises PluginError: with plugin, version and hook, for any error of the plugin.
    """
    caller = manager.subset_hook_caller(hook, _others(manager, hook, found.name))
    start = time.perf_counter()
    result, error = None, None
    try:
        results = caller(**arguments)
        result = results[0] if results else None
    except (Exception, SystemExit) as raised:  # a plugin must not end the user's process
        error = raised
    seconds = time.perf_counter() - start
    for observer in observers:
        observer(HookCall(found.name, hook, result, error, seconds))
    if error is not None:
        raise _attributed(manager, hook, found, error) from error
    return result


def _others(manager: pluggy.PluginManager, hook: str, plugin: str) -> list[Any]:
    """The plugins to leave out of a call; wrappers of other plugins stay, without results."""
    impls = getattr(manager.hook, hook).get_hookimpls()
    return [i.plugin for i in impls if i.plugin_name != plugin and not i.wrapper]


def _attributed(
    manager: pluggy.PluginManager, hook: str, found: Found, error: Exception | SystemExit
) -> PluginError:
    culprit = _culprit(manager, hook, error)
    blamed = found.name if culprit is None else culprit
    which = f"hook {hook}" if blamed == found.name else f"its wrapper around hook {hook}"
    subject = str(found) if blamed == found.name else f"plugin {blamed!r}"
    return PluginError(
        f"{subject} failed in {which}: {type(error).__name__}: {error}",
        hint=how_to_disable(blamed),
    )


def _culprit(manager: pluggy.PluginManager, hook: str, error: Exception | SystemExit) -> str | None:
    """The plugin whose implementation or wrapper is the innermost in the traceback."""
    impls = getattr(manager.hook, hook).get_hookimpls()
    owner = {getattr(i.function, "__code__", None): i.plugin_name for i in impls}
    blamed = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        blamed = owner.get(frame.f_code, blamed)
    return blamed

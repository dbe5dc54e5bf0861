"""Resolve installed and configured plugins to loaded plugins, in order.

The failure of a plugin that the project names is an error, that of one that is merely installed a
warning; both are recorded.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tj_core.errors import ConfigError, PluginError, TjError, TjWarning, how_to_disable
from tj_core.host.discovery import Found, core_version
from tj_core.host.loading import INLINE, Loaded, Unavailable, load
from tj_core.host.selection import Selection, ranks, select

if TYPE_CHECKING:
    from tj_core.host.config import Config
    from tj_core.host.hookcall import Observer

__all__ = ["Activation", "PluginState", "State", "activate", "raise_error", "reported"]

State = Literal["loaded", "blocked", "unavailable", "failed", "installed"]


@dataclass(frozen=True, slots=True)
class PluginState:
    """The state of one known plugin.

    ``state``: ``loaded``; ``blocked`` by ``disable``; ``unavailable`` on this machine; ``failed``,
    if it is broken; ``installed``, but not selected. ``reason`` explains the state; for a loaded
    plugin it may name a lack (`tj_lacking`). ``error`` is the error behind a failure, ``order`` the
    place among the loaded plugins, ``requested`` is True if the project names the plugin.
    """

    name: str
    distribution: str
    version: str
    target: str
    state: State
    reason: str = ""
    error: TjError | None = None
    file: str = ""
    hooks: tuple[str, ...] = ()
    order: int | None = None
    requested: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``tj plugins --json``; the keys are stable."""
        data = asdict(replace(self, error=None))
        del data["error"]
        return data


@dataclass(frozen=True, slots=True)
class Activation:
    """The loaded plugins by name, in order, with their ranks, and the state of every known one."""

    loaded: Mapping[str, Loaded] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    states: tuple[PluginState, ...] = ()


Report = Callable[[TjError], None]


def raise_error(error: TjError) -> NoReturn:
    """Raise ``error``: the ``report`` function of a session."""
    raise error


@contextlib.contextmanager
def reported(report: Report) -> Iterator[None]:
    """Pass a `TjError` of the block to ``report``."""
    try:
        yield
    except TjError as error:
        report(error)


def activate(
    config: Config,
    known: Mapping[str, Found],
    objects: Mapping[str, object],
    observers: tuple[Observer, ...] = (),
    report: Report = raise_error,
) -> Activation:
    """Select from the ``known`` plugins and load the selected ones.

    ``objects`` are the plugin objects that were passed in. Fatal errors go to ``report``; if it
    returns, the plugin is recorded as failed and the others are loaded.
    """
    selection = Selection((), (), (), frozenset())
    with reported(report):
        selection = select(config, known)
    outcomes = {
        name: _outcome(
            known[name], objects.get(name), config, known, observers,
            requested=name in selection.requested, report=report,
        )
        for name in selection.names
    }  # fmt: skip
    loaded = {n: o for n, o in outcomes.items() if isinstance(o, Loaded)}
    order = _ordered(selection, loaded)
    states = [_loaded_state(loaded[n], i, selection) for i, n in enumerate(order)]
    states += [_other_state(known[n], outcomes.get(n), selection, config)
               for n in sorted(set(known) - set(order))]  # fmt: skip
    return Activation(
        {n: loaded[n] for n in order},
        ranks(selection, {n: loaded[n].priority for n in order}),
        tuple(states),
    )


def _ordered(selection: Selection, loaded: Mapping[str, Loaded]) -> list[str]:
    rest = [n for n in selection.rest if n in loaded]
    rest.sort(key=lambda n: (-loaded[n].priority, n))
    return [n for n in (*selection.before, *rest, *selection.after) if n in loaded]


# ------------------------------------------------------------------------------- one plugin


def _outcome(
    found: Found,
    plugin: object | None,
    config: Config,
    known: Mapping[str, Found],
    observers: tuple[Observer, ...],
    *,
    requested: bool,
    report: Report,
) -> Loaded | Unavailable | TjError:
    try:
        outcome = load(found, plugin, config, known, observers)
    except ConfigError as error:  # a mistake in the config: fatal for any plugin
        report(error)
        return error
    except Exception as cause:
        return _broken(found, cause, fatal=requested or config.core.strict, report=report)
    if requested and isinstance(outcome, Unavailable):
        report(_not_available(outcome))
    return outcome


def _broken(found: Found, cause: Exception, *, fatal: bool, report: Report) -> TjError:
    error = _failure(found, cause)
    error.__cause__ = cause
    if fatal:
        report(error)
    else:
        warnings.warn(TjWarning(str(error)), stacklevel=2)
    return error


def _failure(found: Found, cause: Exception) -> PluginError:
    what = cause.message if isinstance(cause, TjError) else f"{type(cause).__name__}: {cause}"
    entry = "" if found.distribution == INLINE else f", entry point {found.name} = {found.target}"
    return PluginError(
        f"{found} cannot be loaded by tj-core {core_version()}{entry}: {what}",
        hint=how_to_disable(found.name),
    )


def _not_available(outcome: Unavailable) -> PluginError:
    return PluginError(
        f"{outcome.found} is asked for but not available: {outcome.reason}",
        hint=how_to_disable(outcome.found.name),
    )


# ------------------------------------------------------------------------------- records


def _state(found: Found, state: State, selection: Selection, **more: Any) -> PluginState:
    return PluginState(
        found.name,
        found.distribution,
        found.version,
        found.target,
        state,
        requested=found.name in selection.requested,
        **more,
    )


def _loaded_state(loaded: Loaded, order: int, selection: Selection) -> PluginState:
    return _state(
        loaded.found, "loaded", selection, file=loaded.file, hooks=loaded.hooks, order=order
    )


def _other_state(
    found: Found,
    outcome: Loaded | Unavailable | TjError | None,
    selection: Selection,
    config: Config,
) -> PluginState:
    if isinstance(outcome, TjError):
        return _state(found, "failed", selection, reason=outcome.message, error=outcome)
    if isinstance(outcome, Unavailable):
        return _state(
            found, "unavailable", selection,
            reason=outcome.reason, file=outcome.file, hooks=outcome.hooks,
        )  # fmt: skip
    if found.name in selection.blocked:
        reason = f"disabled by {config['disable'].origin}"
        return _state(found, "blocked", selection, reason=reason)
    reason = f"not in the list of plugins ({config['plugins'].origin})"
    return _state(found, "installed", selection, reason=reason)

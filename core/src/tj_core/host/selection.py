"""Selection of the plugins to load from those installed, and their order.

A function of names and the project's config; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tj_core.errors import ConfigError, PluginError, did_you_mean
from tj_core.host.config import REST, Config, strength

__all__ = ["Selection", "ranks", "select"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The plugins to load.

    ``before`` and ``after`` are the plugins that the project names, on either side of ``"..."``;
    ``rest`` are the unnamed ones behind ``"..."``, by name. ``blocked`` are the disabled ones.
    """

    before: tuple[str, ...]
    rest: tuple[str, ...]
    after: tuple[str, ...]
    blocked: frozenset[str]

    @property
    def requested(self) -> frozenset[str]:
        """The plugins that the project names, which therefore must work."""
        return frozenset(self.before + self.after)

    @property
    def names(self) -> tuple[str, ...]:
        """All plugins to load; priorities, which order ``rest``, are known only after loading."""
        return self.before + self.rest + self.after


def select(config: Config, known: Collection[str]) -> Selection:
    """Select from the ``known`` plugins, by the options ``plugins`` and ``disable``.

    :raises PluginError: if an option names a plugin that is not installed.
    :raises ConfigError: if a name stands twice, or is both asked for and disabled.
    """
    blocked = frozenset(_known(config, "disable", known))
    listed = config.core.plugins
    before, rest, after = _around((REST,) if listed is None else listed, config["plugins"].origin)
    _known(config, "plugins", known)
    _check_contradiction(config, blocked & {*before, *after})
    others = sorted(set(known) - {*before, *after}) if rest else []
    taken = [tuple(n for n in names if n not in blocked) for names in (before, others, after)]
    return Selection(taken[0], taken[1], taken[2], blocked)


def ranks(selection: Selection, priorities: Mapping[str, int]) -> dict[str, int]:
    """The priority of each loaded plugin's rules, higher wins, consistent with the order.

    Plugins named before ``"..."`` rank above the unnamed ones, which keep their declared priority,
    and plugins named after it below.
    """
    declared = [priorities[name] for name in selection.rest if name in priorities]
    top, bottom = max([0, *declared]), min([0, *declared])
    result = {name: top + len(selection.before) - i for i, name in enumerate(selection.before)}
    result.update({name: bottom - 1 - i for i, name in enumerate(selection.after)})
    result.update({name: priorities[name] for name in selection.rest if name in priorities})
    return {name: rank for name, rank in result.items() if name in priorities}


def _around(listed: Iterable[str], origin: str) -> tuple[list[str], bool, list[str]]:
    """The names before ``"..."``, True if it is in the list, and the names after it."""
    names = list(listed)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{origin}: {name!r} stands twice in {names}")
    if REST not in names:
        return names, False, []
    cut = names.index(REST)
    return names[:cut], True, names[cut + 1 :]


def _known(config: Config, key: str, known: Collection[str]) -> tuple[str, ...]:
    value = config[key]
    names = tuple(n for n in value.value or () if n != REST)
    for name in names:
        if name not in known:
            raise PluginError(
                f"{value.origin}, {key!r}: no plugin {name!r} is installed."
                + did_you_mean(name, known),
                hint=f"installed plugins: {', '.join(sorted(known)) or 'none'}",
            )
    return names


def _check_contradiction(config: Config, both: Collection[str]) -> None:
    """Check the plugins in ``both`` lists: only a stronger source may disable a named plugin."""
    asked, disabled = config["plugins"].origin, config["disable"].origin
    if both and strength(disabled) >= strength(asked):
        names = ", ".join(map(repr, sorted(both)))
        raise ConfigError(
            f"plugin {names} is asked for by {asked} and disabled by {disabled}",
            hint="remove it from one of the two",
        )

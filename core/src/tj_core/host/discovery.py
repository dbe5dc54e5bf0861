"""Discovery of installed plugins: the entry points of group ``tj``, read from metadata alone.

Plugins are imported later, by the loader (`tj_core.host.loading`). The metadata reader is imported
at the first call, to keep ``import tj_core`` fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_core.errors import PluginConflictError

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint

__all__ = [
    "GROUP",
    "UNKNOWN",
    "Found",
    "core_version",
    "discover",
    "distribution_requires",
    "installed_version",
]

GROUP = "tj"
"""The entry-point group; also the project name of the hook markers."""

UNKNOWN = "0+unknown"
"""The version of a tj-core that runs without being installed."""


@dataclass(frozen=True, slots=True)
class Found:
    """An installed plugin, which is not imported yet.

    ``name`` is the name that users type, ``target`` the entry point's value (``tj_x.plugin``).
    """

    name: str
    distribution: str
    version: str
    target: str

    def __str__(self) -> str:
        package = f"{self.distribution} {self.version}".rstrip()
        return f"plugin {self.name!r} ({package})"


def discover() -> tuple[Found, ...]:
    """List the installed plugins by name, importing none of them.

    A distribution that is found twice on ``sys.path`` (editable and wheel) counts once.

    :raises PluginConflictError: if two distributions use one entry-point name.
    """
    by_name: dict[str, Found] = {}
    for found in sorted(set(map(_found, _entry_points())), key=lambda f: (f.name, str(f))):
        rival = by_name.setdefault(found.name, found)
        if rival is not found:
            raise _conflict(rival, found)
    return tuple(by_name.values())


def installed_version(distribution: str) -> str | None:
    """The installed version of ``distribution``, or None."""
    import importlib_metadata

    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None


def core_version() -> str:
    """The version of tj-core; `UNKNOWN` when it runs without being installed."""
    return installed_version("tj-core") or UNKNOWN


def distribution_requires(distribution: str) -> tuple[str, ...]:
    """The requirements of a distribution, from its metadata; () if it is not installed."""
    import importlib_metadata

    try:
        return tuple(importlib_metadata.requires(distribution) or ())
    except importlib_metadata.PackageNotFoundError:
        return ()


def _entry_points() -> Iterable[EntryPoint]:
    import importlib_metadata

    return importlib_metadata.entry_points(group=GROUP)


def _found(entry: EntryPoint) -> Found:
    if entry.dist is None:
        return Found(entry.name, "?", "", entry.value)
    return Found(entry.name, entry.dist.name, entry.dist.version or "", entry.value)


def _conflict(one: Found, two: Found) -> PluginConflictError:
    return PluginConflictError(
        f"two installed plugins are called {one.name!r}: {_where(one)} and {_where(two)}",
        hint="uninstall one of the two distributions",
    )


def _where(found: Found) -> str:
    return f"{found.distribution} {found.version} ({found.name} = {found.target})"

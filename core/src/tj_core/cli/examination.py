"""Findings of the core for ``tj doctor``: plugins, requirements, ties and caches, with remedies."""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tj_core.disk import cache_folder, check_own, with_facts
from tj_core.errors import how_to_disable
from tj_core.host.discovery import (
    UNKNOWN,
    core_version,
    distribution_requires,
    installed_version,
)
from tj_core.host.findings import Finding
from tj_core.host.ties import ties

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.host.config import Config
    from tj_core.host.plugins import PluginManager, PluginState

__all__ = ["of_core"]


def of_core(config: Config, manager: PluginManager) -> Iterator[Finding]:
    """Examine what the core knows: a ``manager`` that was made to list plugins, and its config."""
    yield Finding("python", f"{platform.python_version()} on {platform.platform()}")
    version = core_version()
    yield Finding("tj-core", "runs without being installed" if version == UNKNOWN else version)
    file = config.file or "no pyproject.toml with [tool.tj]: all settings are defaults"
    yield Finding("config", str(file))
    for problem in manager.problems:
        yield Finding("config", problem.message, "bad", problem.hint)
    for state in manager.states:
        yield _of_plugin(state, manager)
    yield from _of_requirements(manager)
    yield from _of_ties(manager)
    yield from _of_cache(config)


# ------------------------------------------------------------------------------- plugins


def _of_plugin(state: PluginState, manager: PluginManager) -> Finding:
    topic, named = "plugins", f"{state.name} ({state.distribution} {state.version})"
    if state.state == "failed":
        hint = state.error.hint if state.error is not None and state.error.hint else ""
        return Finding(topic, f"{named}: {state.reason}", "bad", hint or how_to_disable(state.name))
    if state.state == "loaded":
        lacks = manager.lacking(state.name)
        return Finding(topic, f"{named}: {lacks or 'loaded'}", "note" if lacks else "good")
    return Finding(topic, f"{named}: {state.state}, {state.reason}", "note")


def _of_requirements(manager: PluginManager) -> Iterator[Finding]:
    """The requirements of plugins' distributions that are missing, or there in other versions."""
    owners: dict[str, list[str]] = {}
    for distribution in sorted({s.distribution for s in manager.states}):
        for text in distribution_requires(distribution):
            if _is_needed(text) and _lacks(text):
                owners.setdefault(text.partition(";")[0].strip(), []).append(distribution)
    for wanted, by in owners.items():
        has = installed_version(_requirement(wanted).name) or "none"
        text = f"{', '.join(by)} needs {wanted}, installed is {has}"
        yield Finding("requirements", text, "bad", f"pip install '{wanted}'")
    if not owners:
        yield Finding("requirements", "all are installed, in versions that fit")


def _requirement(text: str) -> Any:
    from packaging.requirements import Requirement

    return Requirement(text)


def _is_needed(text: str) -> bool:
    marker = _requirement(text).marker
    return marker is None or bool(marker.evaluate({"extra": ""}))


def _lacks(text: str) -> bool:
    wanted = _requirement(text)
    version = installed_version(wanted.name)
    # Both spellings are one name of a distribution (PEP 503).
    if version is None and wanted.name.replace("_", "-").lower() == "tj-core":
        return False  # it runs without being installed
    return version is None or not wanted.specifier.contains(version, prereleases=True)


def _of_ties(manager: PluginManager) -> Iterator[Finding]:
    for tie in ties(manager):
        yield Finding("order", str(tie), "note", f"tj plugins order {tie.first} {tie.second}")


# ------------------------------------------------------------------------------- caches


def _of_cache(config: Config) -> Iterator[Finding]:
    folder = cache_folder(config.core.cache_dir)
    if folder is None:
        origin = config["cache_dir"].origin
        yield Finding(
            "cache", f'nothing is kept for later processes: cache_dir is "none" ({origin})'
        )
    elif not folder.exists():
        yield Finding("cache", f"{folder}: nothing is kept yet")
    else:
        yield _of_folder(folder)


def _of_folder(folder: Path) -> Finding:
    every = (facts for _, facts in with_facts(folder.rglob("*")))
    files = [facts for facts in every if stat.S_ISREG(facts.st_mode)]
    size = sum(facts.st_size for facts in files) / 1e6
    try:
        check_own(folder)
    except OSError as error:
        return Finding("cache", f"{folder} is not used: {error}", "bad", _remedy(folder, error))
    text = f"{folder}: {len(files)} files, {size:.1f} MB (tj cache clear removes them)"
    return Finding("cache", text)


def _remedy(folder: Path, error: OSError) -> str:
    """The command that mends a folder which is not used; its owner, or the one above, it cannot."""
    mine = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    if mine and str(error).startswith(f"{folder} "):
        return f"chmod -R go-w {folder}"
    return "export TJ_CACHE_DIR=FOLDER, or cache_dir in [tool.tj], with another folder"

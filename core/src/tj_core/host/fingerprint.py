"""The fingerprint of a session: the code and options of tj and its plugins."""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import tj_core
from tj_core.host.discovery import core_version, distribution_requires, installed_version
from tj_core.host.loading import INLINE

if TYPE_CHECKING:
    import os

    from tj_core.host.plugins import PluginManager

__all__ = ["libraries_of", "session_fingerprint"]


def session_fingerprint(plugins: PluginManager) -> str | None:
    """The versions, files and options of ``plugins`` as text.

    None if a plugin is an object of the program, whose code is unknown.
    """
    lines = [f"{sys.implementation.cache_tag} {platform.platform()} {platform.machine()}"]
    lines.append(f"tj-core {core_version()} {_files(Path(tj_core.__file__).parent)}")
    for name in plugins.names:
        state = plugins.state(name)
        if state.distribution == INLINE or not state.file:
            return None
        files = _files(_code(Path(state.file)))
        lines.append(f"{plugins.identity(name)} {plugins.options(name)!r} {files}")
    return "\n".join(lines)


@functools.cache
def libraries_of(distribution: str) -> str:
    """The versions of what a plugin's distribution requires, as text."""
    from packaging.requirements import Requirement

    names = sorted({Requirement(text).name for text in distribution_requires(distribution)})
    return "\n".join(f"{name} {installed_version(name)}" for name in names)


def _code(file: Path) -> Path:
    """The folder of the package around ``file``; the file itself if there is none."""
    found = file
    while (found.parent / "__init__.py").is_file():
        found = found.parent
    return found


@functools.cache
def _files(code: Path) -> str:
    """A hash of a package's files, by size and time; cached, as of the first call."""
    import hashlib

    facts = [f"{path.relative_to(code)} {s.st_size} {s.st_mtime_ns}" for path, s in _all(code)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _all(code: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in sorted(code.rglob("*")) if code.is_dir() else [code]:
        # Python writes these files while the package runs.
        if "__pycache__" not in path.parts and path.is_file():
            yield path, path.stat()

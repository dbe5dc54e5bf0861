"""The PyTorch that is installed, and what probes have found in it. Imports nothing of PyTorch.

Answers of probes are kept in the cache folder, under the version and the files of PyTorch, so that
they are found once for an installation, and ``tj plugins`` knows them without importing it.
"""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path

from tj_core.extend import cache_folder, own_folder, replace_file

__all__ = ["TESTED", "is_tested", "keep", "kept", "lacking", "torch_version"]

TESTED = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
"""Versions of PyTorch with which tests have run, all or a share (docs/versions.md)."""


def torch_version() -> str:
    """The version of PyTorch that is installed."""
    return metadata.version("torch")


def is_tested(version: str) -> bool:
    """Tell whether tests have run with ``version``, or with another patch release of it."""
    return ".".join(version.split(".")[:2]) in TESTED


def kept(cache_dir: str | None) -> dict[str, str] | None:
    """The features that probes found lost, with reasons; None if no probe has run.

    :param cache_dir: the folder that the project's ``cache_dir`` names.
    """
    file = _file(cache_dir)
    try:
        found = json.loads(file.read_text("utf-8")) if file else None
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        return None
    return {str(name): str(reason) for name, reason in found.items()}


def keep(cache_dir: str | None, found: dict[str, str]) -> None:
    """Keep what probes found for later processes; nothing where there is no folder for it."""
    file = _file(cache_dir)
    if file is None:
        return
    try:
        own_folder(file.parent)
        replace_file(file, json.dumps(found))
    except OSError:  # a folder that is not this user's: the next process probes again
        return


def _file(cache_dir: str | None) -> Path | None:
    folder = cache_folder(cache_dir)
    return None if folder is None else folder / "torch-probes" / f"{_installation()}.json"


def _installation() -> str:
    """PyTorch's version, its files, and the probes that this tj has."""
    found = metadata.distribution("torch")
    probes = Path(__file__).parent.parent / "capture" / "dynamo"
    parts = [found.read_text("RECORD") or str(found.locate_file("torch"))]
    parts += [file.read_text("utf-8") for file in sorted(probes.glob("*.py"))]
    return f"{found.version}-{hashlib.sha256(''.join(parts).encode()).hexdigest()[:16]}"


def lacking(cache_dir: str | None) -> str | None:
    """A line on what tj-torch lacks with this PyTorch; None if it lacks nothing."""
    version = torch_version()
    found = kept(cache_dir)
    if found:
        return f"PyTorch {version} has lost: {', '.join(sorted(found))} (tj doctor)"
    if is_tested(version):
        return None
    tested = f"tested with {', '.join(TESTED)}"
    if found is None:
        return f"PyTorch {version} is probed at the first compile, or by tj doctor ({tested})"
    return f"PyTorch {version} passes all probes ({tested})"

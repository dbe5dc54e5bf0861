"""The PyTorch that is installed, and what probes have found in it. Imports nothing of PyTorch.

Answers of probes are kept in the cache folder, a file for each distribution that has probes, under
the version and the files of PyTorch: they are found once for an installation, and ``tj plugins``
knows them without importing it.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import json
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from tj_core.extend import cache_folder, check_own, own_folder, replace_file

__all__ = [
    "TESTED",
    "Probed",
    "has_no_cuda_device",
    "is_built_with_onednn",
    "is_tested",
    "release",
    "torch_version",
]

TESTED = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
"""Versions of PyTorch with which tests have run, all or a share (docs/versions.md)."""


def torch_version() -> str:
    """The version of PyTorch that is installed."""
    return metadata.version("torch")


def is_tested(version: str) -> bool:
    """Tell whether tests have run with ``version``, or with another patch release of it."""
    return release(version) in TESTED


def release(version: str) -> str:
    """The release that ``version`` is of: ``"2.13"`` of ``"2.13.0+cpu"``."""
    return ".".join(version.split(".")[:2])


def has_no_cuda_device() -> bool:
    """Test if PyTorch finds no CUDA device for sure, without importing it.

    It is built without CUDA and ROCm, or no driver is installed. False where it is imported: ask
    it then.
    """
    if "torch" in sys.modules:
        return False
    built = re.findall(r"^(?:cuda|hip)\b.*= (.*)$", _text("version.py"), re.MULTILINE)
    if len(built) != 2:
        return False
    drivers = ("cuda", "nvcuda", "amdhip64")  # of Linux, of Windows, and of ROCm
    return built == ["None", "None"] or not any(map(ctypes.util.find_library, drivers))


def is_built_with_onednn() -> bool:
    """Test if PyTorch has oneDNN for sure, by its headers. False where it is imported."""
    built = "#define AT_MKLDNN_ENABLED() 1"
    return "torch" not in sys.modules and built in _text("include/ATen/Config.h")


def _text(path: str) -> str:
    """The text of a file of PyTorch's; empty if there is none."""
    spec = find_spec("torch")
    folders = (spec.submodule_search_locations if spec else None) or ()
    try:
        return next((Path(folder, path).read_text("utf-8") for folder in folders), "")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Probed:
    """A distribution whose features are probed: its name, and the package that its probes test.

    ``package`` may be in another: ``tj_torch.capture.dynamo``. Answers hold while its files stay.
    The ``cache_dir`` of all methods is the folder that the project's config names.
    """

    owner: str
    package: str

    def kept(self, cache_dir: str | None) -> dict[str, str] | None:
        """The features that probes found lost, with reasons; None if no probe has run."""
        file = self._file(cache_dir)
        try:
            if file is not None:
                check_own(file.parent)
            found = json.loads(file.read_text("utf-8")) if file else None
        except (OSError, ValueError):
            return None
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            return None
        return {str(name): str(reason) for name, reason in found.items()}

    def keep(self, cache_dir: str | None, found: dict[str, str]) -> None:
        """Keep what probes found for later processes; nothing where there is no folder for it."""
        file = self._file(cache_dir)
        if file is None:
            return
        try:
            own_folder(file.parent)
            replace_file(file, json.dumps(found))
        except OSError:  # a folder that is not this user's: the next process probes again
            return

    def lacking(self, cache_dir: str | None) -> str | None:
        """A line on what the distribution lacks with this PyTorch; None if it lacks nothing."""
        version = torch_version()
        found = self.kept(cache_dir)
        if found:
            return f"PyTorch {version} has lost: {', '.join(sorted(found))} (tj doctor)"
        if is_tested(version):
            return None
        tested = f"tested with {', '.join(TESTED)}"
        if found is None:
            return f"PyTorch {version} is probed at the first compile, or by tj doctor ({tested})"
        return f"PyTorch {version} passes all probes ({tested})"

    def _file(self, cache_dir: str | None) -> Path | None:
        folder = cache_folder(cache_dir)
        if folder is None:
            return None
        return folder / "torch-probes" / f"{self.owner}-{self._installation()}.json"

    def _installation(self) -> str:
        """PyTorch's version, its files, and the files that the probes test."""
        found = metadata.distribution("torch")
        parts = [found.read_text("RECORD") or str(found.locate_file("torch"))]
        top, *rest = self.package.split(".")
        spec = find_spec(top)
        for place in (spec.submodule_search_locations if spec else None) or ():
            files = sorted(Path(place, *rest).rglob("*.py"))
            parts += [file.read_text("utf-8") for file in files]
        return f"{found.version}-{hashlib.sha256(''.join(parts).encode()).hexdigest()[:16]}"

"""Availability of nvFuser in this process, with the reason if it cannot run.

Nothing is raised, and nothing heavy is imported before it is of use: first installed packages are
looked up, then PyTorch is asked for a device, and only then nvFuser is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from typing import Any

__all__ = ["MODULE", "OLDEST", "State", "state"]

MODULE = "nvfuser_direct"
"""Python bindings by which regions are defined; the older module ``nvfuser`` is not used."""

OLDEST = (0, 2, 35)
"""Oldest version of nvFuser whose bindings have all operations that are used."""

INSTALL = "pip install 'tj-nvfuser[cu128-torch210]', for CUDA 12.8 and PyTorch 2.10"
"""The command that brings nvFuser; other pairs are extras, too."""


@dataclass(frozen=True, slots=True)
class State:
    """State of nvFuser in this process; ``reason`` is None if it can run.

    ``importable``: the bindings can be imported with this PyTorch; None if that was not tried,
    since there is no device or the version is too old. ``usable``: there is a device, too.
    ``torch`` and ``nvfuser`` are versions, empty if unknown.
    """

    importable: bool | None = None
    usable: bool = False
    torch: str = ""
    nvfuser: str = ""
    reason: str | None = None


def state() -> State:
    """Determine the state of this process."""
    missing = next((m for m in ("torch", MODULE) if not importlib.util.find_spec(m)), None)
    if missing is not None:
        how = INSTALL if missing == MODULE else "pip install torch"
        return State(importable=False, reason=f"{missing} is not installed ({how})")
    import torch

    version = distribution_version()
    known: Any = {"torch": str(torch.__version__), "nvfuser": version}
    if version and release(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return State(reason=f"nvFuser {version} is older than {oldest} ({INSTALL})", **known)
    if not torch.cuda.is_available():
        return State(reason="PyTorch finds no CUDA device", **known)
    error = import_error()
    if error is not None:
        pair = f"nvFuser {version or 'of unknown version'} with PyTorch {torch.__version__}"
        return State(importable=False, reason=f"{pair} cannot be imported: {error}", **known)
    return State(importable=True, usable=True, **known)


def import_error() -> str | None:
    """First line of the error of importing nvFuser's bindings; None if they can be imported."""
    try:
        importlib.import_module(MODULE)
    except (ImportError, OSError) as error:  # OSError: a library that it is linked with is missing
        return str(error).partition("\n")[0]
    return None


def distribution_version() -> str:
    """Version of the distribution that has nvFuser's bindings; its
    name differs by PyTorch version.
    """
    names: Any = metadata.packages_distributions().get(MODULE, ())
    return next((metadata.version(name) for name in names), "")


def release(version: str) -> tuple[int, ...]:
    """Leading numbers of a version."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)

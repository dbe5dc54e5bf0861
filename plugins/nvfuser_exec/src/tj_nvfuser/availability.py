"""Whether nvFuser can run here: a state, with the reason if it cannot.

Nothing is raised, and nothing heavy is loaded before it is known to be of use: first what is
installed is asked, then PyTorch for a device, and only then nvFuser is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from typing import Any

__all__ = ["MODULE", "OLDEST", "State", "state"]

MODULE = "nvfuser_direct"
"""The bindings that regions are defined with; the older ``nvfuser`` is not used."""

OLDEST = (0, 2, 35)
"""The oldest version of nvFuser whose bindings have what is used."""


@dataclass(frozen=True, slots=True)
class State:
    """What is known of nvFuser here; ``reason`` says why it cannot run, or is None.

    ``importable``: the bindings are there and fit to PyTorch; None: nobody has tried, since they
    would be of no use. ``usable``: there is a device, too. ``torch`` and ``nvfuser`` are versions,
    as far as they are known.
    """

    importable: bool | None = None
    usable: bool = False
    torch: str = ""
    nvfuser: str = ""
    reason: str | None = None


def state() -> State:
    """The state of this process."""
    missing = next((m for m in ("torch", MODULE) if not importlib.util.find_spec(m)), None)
    if missing is not None:
        return State(importable=False, reason=f"{missing} is not installed")
    import torch

    version = distribution_version()
    known: Any = {"torch": str(torch.__version__), "nvfuser": version}
    if version and release(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return State(reason=f"nvFuser {version} is older than {oldest}", **known)
    if not torch.cuda.is_available():
        return State(reason="PyTorch finds no CUDA device", **known)
    error = import_error()
    if error is not None:
        pair = f"nvFuser {version or 'of unknown version'} with PyTorch {torch.__version__}"
        return State(importable=False, reason=f"{pair} cannot be imported: {error}", **known)
    return State(importable=True, usable=True, **known)


def import_error() -> str | None:
    """Why nvFuser's bindings cannot be imported, in a line; None: they are."""
    try:
        importlib.import_module(MODULE)
    except (ImportError, OSError) as error:  # OSError: a library that it is linked with is missing
        return str(error).partition("\n")[0]
    return None


def distribution_version() -> str:
    """The version of whichever distribution has nvFuser's bindings: one for each PyTorch."""
    names: Any = metadata.packages_distributions().get(MODULE, ())
    return next((metadata.version(name) for name in names), "")


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)

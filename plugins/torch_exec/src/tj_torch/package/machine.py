"""Versions and the machine that a package was made with, and the comparison with those at hand."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator, Mapping

import torch
from tj_core.internal import installed_version

__all__ = ["differences", "facts"]


def facts(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of ``distributions``, PyTorch and Python, the system and the processor's vectors.

    Kernels are compiled for them, and operations of PyTorch mean what its version says.
    """
    found = {name: installed_version(name) or "not installed" for name in distributions}
    return found | {
        "torch": torch.__version__,
        "python": str(sys.implementation.cache_tag),
        "system": f"{sys.platform} {platform.machine()}",
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def differences(made: Mapping[str, str]) -> Iterator[str]:
    """Texts of what is different here from ``made``, the `facts` of a package."""
    known = {"torch", "python", "system", "processor"}
    now = facts(name for name in made if name not in known)
    for name, value in made.items():
        if now[name] != value:
            yield f"{name} is {now[name]} here, and the package was made with {value}"
    for name in sorted(known - made.keys()):
        yield f"the package does not say its {name}"

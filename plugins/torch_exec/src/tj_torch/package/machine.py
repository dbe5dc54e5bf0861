"""Versions and the machine that a package was made with, and the comparison with those at hand."""

from __future__ import annotations

import functools
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

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
        "instructions": _instructions(),
    }


_COMPILED = re.compile(r"(avx|amx|s?sse|fma|bmi)\w*|f16c|abm|popcnt|movbe|adx|gfni|vaes")
"""Instructions, of those of x86, that C++ compilers use by themselves."""


@functools.cache
def _instructions() -> str:
    """The processor's further instructions, which kernels may have that were compiled for it.

    Processors of one kind of vectors differ in them: some with AVX-512 have no bfloat16.
    """
    info = Path("/proc/cpuinfo")
    first = info.read_text("utf-8", "replace").partition("\n\n")[0] if info.exists() else ""
    for name, _, value in (line.partition(":") for line in first.splitlines()):
        if name.strip() in ("flags", "Features"):
            every = name.strip() == "Features"  # on ARM, where programs may use each of them
            return " ".join(sorted(f for f in value.split() if every or _COMPILED.fullmatch(f)))
    return ""


def differences(made: Mapping[str, str]) -> Iterator[str]:
    """Texts of what is different here from ``made``, the `facts` of a package."""
    known = {"torch", "python", "system", "processor", "instructions"}
    now = facts(name for name in made if name not in known)
    for name, value in made.items():
        if name == "instructions":
            if lacking := {*value.split()} - {*now[name].split()}:
                yield f"the processor here has no {', '.join(sorted(lacking))}"
        elif now[name] != value:
            yield f"{name} is {now[name]} here, and the package was made with {value}"
    for name in sorted(known - made.keys()):
        yield f"the package does not say its {name}"

"""Definition and execution of regions by nvFuser's bindings, ``nvfuser_direct``.

All uses of nvFuser's names are in this file. It is imported with the first region, not before.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from tj_core.extend import Device, define

from tj_nvfuser.availability import MODULE

__all__ = ["NvFuser", "Run", "Target"]

Run = Callable[[list[Any]], Sequence[Any]]
"""Runs a definition for a list of its inputs."""

HEADERS = Path("/usr/local/cuda/include")
"""Folder that nvFuser passes to NVRTC for kernels with scans, sorts, top-k or scatters."""

PROCESSES = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Environment variables by which nvFuser would set up its own communication between processes."""


@functools.cache
def header_version(folder: Path) -> str | None:
    """CUDA version of the headers in ``folder``, as ``12.8``; None without any."""
    try:
        text = (folder / "cuda.h").read_text("utf-8", "replace")
    except OSError:
        return None
    found = re.search(r"^#define CUDA_VERSION (\d+)", text, re.MULTILINE)
    if found is None:
        return None
    number = int(found[1])
    return f"{number // 1000}.{number % 1000 // 10}"  # 12080 is 12.8


class Target(Protocol):
    """Backend that definitions are made for.

    ``devices``: types of the devices whose tensors it takes.
    """

    devices: Collection[str]

    def capability(self, device: Device) -> tuple[int, int]:
        """Compute capability of ``device``."""
        ...

    def no_scans(self) -> str | None:
        """Reason why scans cannot be compiled here; None if they can."""
        ...

    def build(self, text: str) -> Run:
        """Compile the definition ``text`` to a function."""
        ...


class NvFuser:
    """nvFuser itself."""

    devices: Collection[str] = ("cuda",)

    def capability(self, device: Device) -> tuple[int, int]:
        """Compute capability of ``device``."""
        return torch.cuda.get_device_capability(device.index)

    def no_scans(self) -> str | None:
        """Reason why scans cannot be compiled: the headers' CUDA version differs from nvFuser's;
        else None.

        nvFuser's CUDA version is taken to be PyTorch's: a wheel of nvFuser is for one version of
        each.
        """
        found, own = header_version(HEADERS), torch.version.cuda
        if found is None:
            return f"nvFuser compiles scans with headers that {HEADERS} does not have"
        if found != own:
            return f"nvFuser is for CUDA {own}, and would read headers of {found} in {HEADERS}"
        return None

    def build(self, text: str) -> Run:
        """Define the fusion; it is compiled at its first run.

        :raises RuntimeError: if nvFuser refuses the definition.
        """
        nvfuser = bindings()
        scope = {"DataType": nvfuser.DataType, "FusionDefinition": nvfuser.FusionDefinition}
        define_fusion = define(text, "nvfuser_fusion", scope, "nvfuser")
        said = io.StringIO()
        try:
            # Standard output is the user's: nothing that the bindings print belongs there.
            with contextlib.redirect_stdout(said), nvfuser.FusionDefinition() as fusion:
                define_fusion(fusion)
        except RuntimeError as error:
            raise shortened(error) from None

        def run(inputs: list[Any]) -> Sequence[Any]:
            try:
                found: Sequence[Any] = fusion.execute(inputs)
            except RuntimeError as error:
                raise shortened(error) from None
            return found

        return run


def bindings() -> Any:
    """Import nvFuser's bindings."""
    if any(name in os.environ for name in PROCESSES):
        # Each process runs on its own device here, and PyTorch is who communicates.
        os.environ.setdefault("NVFUSER_DISABLE", "multidevice")
    return importlib.import_module(MODULE)


def shortened(error: RuntimeError) -> RuntimeError:
    """``error`` without the C++ stack at the end of its text."""
    text = str(error).partition("Exception raised from")[0].strip()
    return RuntimeError(text) if text else error

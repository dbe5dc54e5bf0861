"""What defines and runs regions: nvFuser, through its bindings ``nvfuser_direct``.

Every name of nvFuser's is here. It is imported with the first region, not before.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from tj_core.extend import Device, define

from tj_nvfuser.availability import MODULE

__all__ = ["NvFuser", "Run", "Target"]

Run = Callable[[list[Any]], Sequence[Any]]
"""Runs a definition for a list of its inputs."""

PROCESSES = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Variables by which nvFuser would set up communication of its own between processes."""


class Target(Protocol):
    """What definitions are made for.

    ``devices``: the types of devices whose tensors it takes.
    """

    devices: Collection[str]

    def capability(self, device: Device) -> tuple[int, int]:
        """The compute capability of ``device``."""
        ...

    def build(self, text: str) -> Run:
        """What runs the definition ``text``."""
        ...


class NvFuser:
    """nvFuser itself."""

    devices: Collection[str] = ("cuda",)

    def capability(self, device: Device) -> tuple[int, int]:
        """The compute capability of ``device``."""
        return torch.cuda.get_device_capability(device.index)

    def build(self, text: str) -> Run:
        """Define the fusion; it is compiled as it first runs.

        :raises RuntimeError: if nvFuser refuses the definition.
        """
        nvfuser = bindings()
        scope = {"DataType": nvfuser.DataType, "FusionDefinition": nvfuser.FusionDefinition}
        define_fusion = define(text, "nvfuser_fusion", scope, "nvfuser")
        said = io.StringIO()
        try:
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
    """nvFuser's bindings."""
    if any(name in os.environ for name in PROCESSES):
        # Each process runs on its own device here, and PyTorch is who communicates.
        os.environ.setdefault("NVFUSER_DISABLE", "multidevice")
    return importlib.import_module(MODULE)


def shortened(error: RuntimeError) -> RuntimeError:
    """``error`` without the stack of C++ calls that its text ends with."""
    text = str(error).partition("Exception raised from")[0].strip()
    return RuntimeError(text) if text else error

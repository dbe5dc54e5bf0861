"""A CUDA device that does not exist, for nvFuser in this process.

`load` builds ``device.cpp`` and loads it; it must come before PyTorch is imported. A `Pretended`
tensor claims to be on the device, and computes on the CPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from pathlib import Path

__all__ = ["load"]

INCLUDES = (
    "nvidia/cu13/include",
    "nvidia/cuda_runtime/include",
    "nvidia/cuda_nvcc/include",
    "torch/include",
    "torch/include/torch/csrc/api/include",
)
"""Folders with headers, inside of the folder that PyTorch is installed in."""


def load(folder: Path) -> None:
    """Build the device's library in ``folder``, and load it.

    :raises subprocess.CalledProcessError: if it does not compile.
    """
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parents[1]
    library = folder / "libdevice.so"
    source = Path(__file__).with_name("device.cpp")
    headers = [f"-I{packages / path}" for path in INCLUDES]
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, "-o", str(library), str(source), *headers], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)

"""The options of tj-nvfuser, ``[tool.tj.nvfuser]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.nvfuser]``.

    ``minimum``: calls that compute in the smallest region. ``cache``: number of compiled
    definitions that are kept. ``emulate_precision``: values of bfloat16 and float16 are rounded
    between fused operations, as in eager; without it they stay in float32 inside of regions.
    ``indices``: regions may read elements by index, losses of classes among them; nvFuser reads
    what lies beside a tensor for an index out of bounds, which is an error in PyTorch.
    ``matmul``: regions may have matrix products, for which nvFuser calls PyTorch's. ``scans``:
    regions may have cumulative sums and products, sorts, top-k and scatters; to compile some of
    these, nvFuser needs the headers of its version of CUDA in ``/usr/local/cuda``. ``sdpa``:
    regions may have PyTorch's flash attention without dropout. ``random``: regions draw random
    numbers, which differ from PyTorch's for a seed; it has no effect if ``check``, the core's, is
    3, since regions are compared with PyTorch's values then.
    """

    minimum: int = 3
    cache: int = 1024
    emulate_precision: bool = True
    indices: bool = False
    matmul: bool = False
    scans: bool = False
    sdpa: bool = False
    random: bool = False
    check: Literal[0, 1, 2, 3, "sample"] = 0

    @property
    def draws(self) -> bool:
        """True if regions draw random numbers."""
        return self.random and self.check != 3

    def __post_init__(self) -> None:
        for name in ("minimum", "cache"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and at least 1")

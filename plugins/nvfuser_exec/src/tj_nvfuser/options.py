"""The options of tj-nvfuser, ``[tool.tj.nvfuser]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.nvfuser]``.

    ``minimum``: calls that compute, in the smallest region. ``cache``: definitions that are kept,
    compiled. ``emulate_precision``: values of bfloat16 and float16 are rounded between fused
    operations, as eager does; else they stay in float32 inside of regions. ``matmul``: products of
    matrices stand in regions, where nvFuser calls PyTorch's. ``scans``: cumulative sums and
    products, sorts, top-k and scatters do; to compile some of these, nvFuser needs the headers of
    its version of CUDA in ``/usr/local/cuda``. ``sdpa``: PyTorch's flash attention without dropout
    stands in regions. ``random``: random numbers are drawn in regions; they are others than
    PyTorch's for a seed; not with ``check``, the core's, at 3,
    which holds regions against PyTorch's values.
    """

    minimum: int = 3
    cache: int = 1024
    emulate_precision: bool = True
    matmul: bool = False
    scans: bool = False
    sdpa: bool = False
    random: bool = False
    check: Literal[0, 1, 2, 3, "sample"] = 0

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn in regions."""
        return self.random and self.check != 3

    def __post_init__(self) -> None:
        for name in ("minimum", "cache"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and at least 1")

"""The options of tj-inductor, ``[tool.tj.inductor]``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.inductor]``.

    ``emulate_precision``: values of bfloat16 and float16 are rounded between fused operations, as
    eager does; else they stay in float32 inside of kernels, which is faster. ``decompose_tanh``:
    tanh from an exponential, faster, with an absolute error below 1e-6 in float32.
    ``one_compile``: one run of the C++ compiler for the kernels of all regions of a program.
    ``minimum``: calls in the smallest region.
    """

    emulate_precision: bool = True
    decompose_tanh: bool = False
    one_compile: bool = True
    minimum: int = 2

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise ValueError(f"minimum is {self.minimum}, and a region has at least one call")

"""The options of tj-inductor, ``[tool.tj.inductor]``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.inductor]``.

    ``emulate_precision``: values of bfloat16 and float16 are rounded between fused operations, as
    in eager; without it they stay in float32 inside of kernels, which is faster.
    ``decompose_tanh``: tanh in float32 by a quotient of polynomials, with a relative error below
    4e-7, a third of the tolerance of `torch.testing.assert_close`; without it PyTorch's, which
    takes several times as long. ``one_compile``: one run of the C++ compiler for the kernels of all
    regions of a program. ``minimum``: calls in the smallest region; with 2, single calls with a
    slow kernel in PyTorch are regions, too.
    """

    emulate_precision: bool = True
    decompose_tanh: bool = True
    one_compile: bool = True
    minimum: int = 2

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise ValueError(f"minimum is {self.minimum}, and a region has at least one call")

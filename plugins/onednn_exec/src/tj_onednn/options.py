"""The options of tj-onednn, ``[tool.tj.onednn]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.onednn]``.

    ``choose``: ``"measure"`` takes a call if oneDNN was faster than PyTorch's kernel by more than
    ``margin``, a fraction of that kernel's time; ``"always"`` takes every call that oneDNN can run,
    for tests. ``minimum``: products of fewer multiplications are neither measured nor taken.
    ``precision``: ``"bfloat16"`` rounds the arguments and the result of float32 products.
    ``cache_dir``: measured times are kept in ``onednn`` in this folder; by default in the cache
    folder of all plugins; ``"none"`` keeps nothing. ``freeze``: parameters are not written any
    more, so that inference may pack the weights of layers. ``epilogues``: a layer and the
    activation that follows are one call, where that is faster; for programs that no other executor
    fuses. ``int8``: patterns of paths of modules whose layers round weights and activations to int8
    in inference; ``int8_weights``: those that round weights alone.
    """

    choose: Literal["measure", "always"] = "measure"
    margin: float = 0.05
    minimum: int = 1 << 14
    precision: Literal["float32", "bfloat16"] = "float32"
    cache_dir: str | None = None
    freeze: bool = False
    epilogues: bool = False
    int8: tuple[str, ...] = ()
    int8_weights: tuple[str, ...] = ()

    @property
    def rounds(self) -> bool:
        """True if layers may run in int8."""
        return bool(self.int8 or self.int8_weights)

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin is {self.margin}, and it is a part of a time: from 0 to 1")

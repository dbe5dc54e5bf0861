"""The options of tj-distributed, ``[tool.tj.distributed]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.distributed]``.

    ``agree``: how ranks see that their programs run the same collectives. ``compile``: the first
    run of a program waits for the others' word, later runs only send theirs, and a difference is
    an error as soon as it is known. ``run``: each run waits. ``off``: nothing is sent.
    ``patience``: seconds after which a rank that waits says for whom, by logging. ``overlap``:
    gradients of a model in ``DistributedDataParallel`` are handed on bucket by bucket, so that it
    reduces the first while others are computed.
    """

    agree: Literal["compile", "run", "off"] = "compile"
    patience: float = 10.0
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.agree not in ("compile", "run", "off"):
            raise ValueError(f"agree is {self.agree!r}, and one of 'compile', 'run', 'off'")
        if self.patience <= 0:
            raise ValueError(f"patience is {self.patience}, and more than 0")

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
    ``patience``: seconds after which a rank that waits says for whom, by logging.

    ``overlap``: collectives start early and are waited for late, beside what is computed, and
    gradients of a model in ``DistributedDataParallel`` are handed on bucket by bucket.
    ``prefetch``: gathers that are under way beside the one that is waited for next;
    ``in_flight_mb``: their megabytes together (None: any). ``bucket_mb``: megabytes of small
    collectives that start as one (0: each for itself). ``tflops``, ``memory_gbs``, ``network_gbs``
    and ``latency_us``: the speeds that times are estimated from, where those of
    `tj_distributed.schedule.times.SPEEDS` are not meant.

    ``merge_redistributions``: a redistribution of what another one returns is one; an all-reduce of
    which each rank takes its shard becomes a reduce-scatter. Sums of more than two ranks may be
    added in another order than in eager, and eager runs other collectives.

    All ranks have the same options.
    """

    agree: Literal["compile", "run", "off"] = "compile"
    patience: float = 10.0
    overlap: bool = True
    merge_redistributions: bool = False
    prefetch: int = 1
    in_flight_mb: float | None = None
    bucket_mb: float = 25.0
    tflops: float | None = None
    memory_gbs: float | None = None
    network_gbs: float | None = None
    latency_us: float | None = None

    def __post_init__(self) -> None:
        if self.agree not in ("compile", "run", "off"):
            raise ValueError(f"agree is {self.agree!r}, and one of 'compile', 'run', 'off'")
        if self.patience <= 0:
            raise ValueError(f"patience must be more than 0, and is {self.patience}")
        for name in ("prefetch", "bucket_mb", "in_flight_mb", "latency_us"):
            if (number := getattr(self, name)) is not None and number < 0:
                raise ValueError(f"{name} is {number}, and not below 0")
        for name in ("tflops", "memory_gbs", "network_gbs"):
            if (number := getattr(self, name)) is not None and number <= 0:
                raise ValueError(f"{name} must be more than 0, and is {number}")

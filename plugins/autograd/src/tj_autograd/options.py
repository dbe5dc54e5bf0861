"""The options of tj-autograd, ``[tool.tj.autograd]``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.autograd]``.

    ``memory_budget``: the part, from 0 to 1, that may be saved of the bytes that the default split
    saves. At 1 only cheap calls are recomputed; at 0 all calls that can be. ``prefer``: "memory" or
    "time". With "time", functions that are slow on a CPU (tanh, exponentials) are not recomputed
    where that is estimated to be faster; more is saved then.
    """

    memory_budget: float = 1.0
    prefer: str = "memory"

    def __post_init__(self) -> None:
        if not 0 <= self.memory_budget <= 1:
            raise ValueError(f"memory_budget is {self.memory_budget}, not between 0 and 1")
        if self.prefer not in ("memory", "time"):
            raise ValueError(f'prefer is {self.prefer!r}, neither "memory" nor "time"')

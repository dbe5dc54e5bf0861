"""The options of tj-autograd, ``[tool.tj.autograd]``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``[tool.tj.autograd]``.

    ``memory_budget``: how much of the bytes that the forward would save for the backward it may
    save, from 1, where only cheap calls run again in the backward, to 0, where all do that can.
    ``prefer``: "memory", or "time", where functions that take a CPU long (tanh, exponentials) do
    not run again in the backward if that is estimated to be faster; it saves more.
    """

    memory_budget: float = 1.0
    prefer: str = "memory"

    def __post_init__(self) -> None:
        if not 0 <= self.memory_budget <= 1:
            raise ValueError(f"memory_budget is {self.memory_budget}, not between 0 and 1")
        if self.prefer not in ("memory", "time"):
            raise ValueError(f'prefer is {self.prefer!r}, neither "memory" nor "time"')

"""Lines of ``tj doctor``: the record that plugins return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "State"]

State = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``tj doctor``.

    ``topic`` is a word, such as a distribution's name. ``state`` is ``bad`` for what does not work,
    ``note`` for what may surprise. ``remedy`` is the command that mends it, if there is one.
    """

    topic: str
    text: str
    state: State = "good"
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """Plain data for ``tj doctor --json``; the keys are stable."""
        names = ("topic", "text", "state", "remedy")
        return {name: getattr(self, name) for name in names}

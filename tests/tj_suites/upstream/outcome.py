"""Outcome of one test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

__all__ = ["UNEXPECTED", "Outcome", "Status", "last_lines"]

LINES, WIDTH = 30, 300

UNEXPECTED = "unexpected success"
"""The summary of a test that is expected to fail, and does not."""


def last_lines(text: str) -> str:
    """The last lines of an error, which are kept."""
    return "\n".join(line[:WIDTH] for line in text.rstrip().splitlines()[-LINES:])


class Status(Enum):
    """End of a test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    GONE = "gone"
    """It is not in the file as loaded, or the file does not load."""

    @property
    def bad(self) -> bool:
        """Tell failures from successes."""
        return self not in (Status.PASSED, Status.SKIPPED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a test, ``Class.test_name``, in one mode."""

    test: str
    status: Status
    summary: str = ""
    """The exception in one line, or why a test was skipped."""
    error: str = ""
    """The last lines of what was printed."""
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self) | {"status": self.status.value}

    @classmethod
    def read(cls, data: dict[str, Any]) -> Outcome:
        """Make an outcome from the text of `plain`."""
        return cls(**(data | {"status": Status(data["status"])}))

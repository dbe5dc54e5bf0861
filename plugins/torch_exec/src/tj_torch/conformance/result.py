"""What became of one entry of a database."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Result"]


@dataclass
class Result:
    """Differences from eager over an entry's samples, and where tj did not take part."""

    name: str
    samples: int = 0
    eager_errors: int = 0
    problems: list[str] = field(default_factory=list)
    fallbacks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every sample that eager can run came out equal."""
        return not self.problems

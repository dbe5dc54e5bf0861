"""Results of the comparison of one entry of a database."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tj_conformance.oracle.compare import Difference

__all__ = ["Kind", "Problem", "Result"]


class Kind(enum.Enum):
    """Kinds of differences of a jitted entry from eager."""

    BREAK = "graph break"
    DECLINED = "left to PyTorch's autograd"
    ROUNDING = "rounding"
    RESULT = "result"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Problem:
    """One difference; ``where`` names the sample."""

    kind: Kind
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind.value}: {self.what}"


@dataclass
class Result:
    """Differences from eager over an entry's samples, and fallbacks.

    ``samples`` were compared; ``eager_errors`` could not be, because eager raises, or does not
    where it should.
    """

    name: str
    samples: int = 0
    eager_errors: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def kinds(self) -> frozenset[Kind]:
        """Kinds of differences of the samples."""
        return frozenset(p.kind for p in self.problems)

    @property
    def ok(self) -> bool:
        """True if all samples are equal to eager, fallbacks included."""
        return self.kinds <= {Kind.BREAK, Kind.DECLINED}

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Reasons of fallbacks."""
        return tuple(p.what for p in self.problems if p.kind is Kind.BREAK)

    def differs(self, where: str, found: Iterable[Difference]) -> None:
        """Record the differences of one sample."""
        for d in found:
            kind = Kind.ROUNDING if d.rounding else Kind.RESULT
            self.problems.append(Problem(kind, where, str(d)))

    def raises(self, where: str, error: Exception) -> None:
        """Record an exception that eager does not raise."""
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        self.problems.append(Problem(Kind.ERROR, where, text))

    def falls_back(self, where: str, reasons: Iterable[str]) -> None:
        """Record the reasons of a jitted callable's fallbacks."""
        self.problems += [Problem(Kind.BREAK, where, reason) for reason in reasons]

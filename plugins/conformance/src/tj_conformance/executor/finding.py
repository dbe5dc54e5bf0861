"""One fault of an executor, with the program that shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the executor ``owner`` (executor, plugin, distribution).

    ``sample`` and ``layout`` name the arguments, ``probe`` and ``kind`` the way in which it was
    found. ``program`` is Python that raises an error for it.
    """

    owner: str
    operation: str
    dtype: str
    sample: str
    layout: str
    probe: str
    kind: str
    problem: str
    program: str

    @property
    def where(self) -> str:
        """The call in words."""
        kind = "" if self.kind == "forward" else f", {self.kind}"
        return f"{self.operation}, {self.dtype}, {self.sample}, {self.layout}{kind}"

    def __str__(self) -> str:
        program = "\n".join(f"    {line}" for line in self.program.splitlines())
        return f"{self.owner}: {self.where} ({self.probe})\n  {self.problem}\n\n{program}\n"

    def as_dict(self) -> dict[str, Any]:
        """The finding for JSON."""
        return asdict(self)

"""The claims report: who runs each operation, who declined and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tj_core.claim import ClaimRecord
from tj_core.jitted import Fallback
from tj_core.pipeline import Compilation
from tj_core.records import Decline

__all__ = ["Explanation", "explain_compilation"]

HEADER = ("call", "operation", "executor", "declined by", "source")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The claims of one compiled program, and what runs without tj. `str` is a plain table.

    ``declined`` are the transforms that did not take the program, and why.
    """

    claims: tuple[ClaimRecord, ...]
    fallbacks: tuple[Fallback, ...]
    declined: tuple[tuple[str, Decline], ...] = ()

    def rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """The table's rows, in program order; `HEADER` names the columns."""
        for record in self.claims:
            declined = "; ".join(f"{name}: {reason}" for name, reason in record.declined)
            source = record.source.short() if record.source else ""
            yield (
                "  " * record.depth + record.call,
                record.symbol.qualname,
                record.executor or "(its body)",
                declined,
                source,
            )

    def counts(self) -> dict[str, int]:
        """Number of calls per executor."""
        found: dict[str, int] = {}
        for record in self.claims:
            if record.executor:
                found[record.executor] = found.get(record.executor, 0) + 1
        return found

    def __str__(self) -> str:
        table = [HEADER, *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        for name, answer in self.declined:
            lines.append(f"without {name}: {answer.reason}{_at(answer.source)}")
        for fallback in self.fallbacks:
            lines.append(f"without tj: {fallback.reason}{_at(fallback.source)}")
        return "\n".join(lines)


def _at(source: object) -> str:
    return f" at {source}" if source else ""


def explain_compilation(
    compilation: Compilation, fallbacks: tuple[Fallback, ...] = ()
) -> Explanation:
    """The explanation of ``compilation``."""
    return Explanation(compilation.claims, fallbacks, compilation.declined)

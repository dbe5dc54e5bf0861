"""The report of a run: for each operation and data type, the calls taken, declines, findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tj_conformance.executor.finding import Finding

__all__ = ["Cell", "Report"]


@dataclass
class Cell:
    """One operation in one data type: ``taken`` of ``samples`` calls, and why not the others.

    ``gradients`` of these samples have calls that the executor took. ``probed`` is the number of
    probes that ran. ``others`` differ without the executor, too, and ``rounding`` by no more than
    eager's own errors.
    """

    operation: str
    dtype: str
    samples: int = 0
    taken: int = 0
    gradients: int = 0
    probed: int = 0
    declined: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    symbols: set[str] = field(default_factory=set)
    rounding: tuple[str, ...] = ()

    @property
    def takes(self) -> bool:
        """True if the executor runs a part of a sample."""
        return self.taken > 0 or self.gradients > 0

    @property
    def text(self) -> str:
        """The cell in the capability matrix: calls taken, with an exclamation mark if wrong."""
        if not self.takes:
            return "!" if self.findings else "-"
        return f"{max(self.taken, self.gradients)}/{self.samples}{'!' if self.findings else ''}"

    def as_dict(self) -> dict[str, Any]:
        """The cell for JSON."""
        return {
            "operation": self.operation,
            "dtype": self.dtype,
            "samples": self.samples,
            "taken": self.taken,
            "taken_with_gradients": self.gradients,
            "probes": self.probed,
            "declined": dict(self.declined.most_common()),
            "without_the_executor_too": self.others,
            "rounded_as_eager": list(self.rounding),
            "findings": [f.as_dict() for f in self.findings],
        }


@dataclass
class Report:
    """All cells of a run for ``owner``.

    ``untried`` are claims that no sample reached, ``left`` operations that there was no time for.
    """

    executor: str
    owner: str
    cells: list[Cell] = field(default_factory=list)
    untried: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    tolerances: tuple[str, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """The findings of all cells."""
        return [finding for cell in self.cells for finding in cell.findings]

    @property
    def shown(self) -> list[Cell]:
        """The cells of operations that the executor takes, declines by kind, or gets wrong."""
        known = {c.operation for c in self.cells if c.takes or c.declined or c.findings}
        return [c for c in self.cells if c.operation in known]

    def rows(self) -> Iterator[tuple[str, dict[str, Cell]]]:
        """The operations, each with its cells by data type."""
        found: dict[str, dict[str, Cell]] = {}
        for cell in self.shown:
            found.setdefault(cell.operation, {})[cell.dtype] = cell
        yield from found.items()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The data types of the shown cells, in the order of the run."""
        return tuple(dict.fromkeys(cell.dtype for cell in self.shown))

    @property
    def summary(self) -> str:
        """One line of figures."""
        taken = sum(max(c.taken, c.gradients) for c in self.shown)
        samples = sum(c.samples for c in self.shown)
        wrong = len(self.findings)
        probes = sum(c.probed for c in self.shown)
        return (
            f"{self.owner}: takes {taken} of {samples} samples of {len(dict(self.rows()))} "
            f"operations; {probes} probes, {wrong} finding{'' if wrong == 1 else 's'}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "executor": self.executor,
            "owner": self.owner,
            "summary": self.summary,
            "tolerances": list(self.tolerances),
            "untried_claims": list(self.untried),
            "operations_left": list(self.left),
            "cells": [c.as_dict() for c in self.shown],
        }

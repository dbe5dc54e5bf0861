"""Differences of two traces of one program, line by line."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tj_core.showing import text_html

if TYPE_CHECKING:
    from tj_core.ir.trace import Trace

__all__ = ["TraceDiff"]


@dataclass(frozen=True, eq=False, repr=False)
class TraceDiff:
    """The lines in which ``after`` differs from ``before``; `str` is a unified diff.

    Source lines and bodies of calls are left out.
    """

    before: Trace
    after: Trace

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines of the unified diff, whose headings are the stages."""
        return tuple(
            difflib.unified_diff(
                _text(self.before),
                _text(self.after),
                self.before.stage.name,
                self.after.stage.name,
                lineterm="",
            )
        )

    @property
    def added(self) -> tuple[str, ...]:
        """The lines of ``after`` alone."""
        # The first two lines are headings, which begin with the same signs.
        return tuple(line[1:] for line in self.lines[2:] if line.startswith("+"))

    @property
    def removed(self) -> tuple[str, ...]:
        """The lines of ``before`` alone."""
        return tuple(line[1:] for line in self.lines[2:] if line.startswith("-"))

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        stages = f"{self.before.stage.name} to {self.after.stage.name}"
        return f"<tj diff of {stages}: {len(self.added)} lines more, {len(self.removed)} fewer>"

    def _repr_html_(self) -> str:
        return text_html(str(self), {"+": "#54a24b33", "-": "#e4575633"})


def _text(trace: Trace) -> list[str]:
    return trace.python(sources=False, bodies=False).splitlines()

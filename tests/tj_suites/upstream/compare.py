"""Runs a file on tj, and what fails again without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from tj_suites.upstream.kinds import Mode, kind_of, references
from tj_suites.upstream.outcome import UNEXPECTED, Outcome, Status
from tj_suites.upstream.running import Limits, Run, run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Report", "Verdict", "compare"]


class Verdict(Enum):
    """Judgement of one test on tj."""

    PASSED = "passed"
    SKIPPED = "skipped"
    ALONE = "failed with tj alone"
    EVERYWHERE = "failed everywhere"


@dataclass
class Report:
    """All outcomes of one file, by mode."""

    file: str
    mode: Mode = Mode.TJ
    outcomes: dict[Mode, dict[str, Outcome]] = field(default_factory=dict)

    def verdict(self, test: str) -> Verdict:
        """Judge ``test``: a test that fails without tj as well is not tj's fault.

        A test that others are expected to fail, and tj does not, has passed.
        """
        outcome = self.outcomes[self.mode][test]
        status = outcome.status
        if not status.bad or outcome.summary == UNEXPECTED:
            return Verdict.SKIPPED if status is Status.SKIPPED else Verdict.PASSED
        others = (self.outcomes.get(m, {}).get(test) for m in references(kind_of(self.file)))
        bad = any(o is not None and o.status.bad for o in others)
        return Verdict.EVERYWHERE if bad else Verdict.ALONE

    def tests(self, verdict: Verdict) -> list[Outcome]:
        """The outcomes on tj of the tests with this verdict."""
        return [o for o in self.outcomes[self.mode].values() if self.verdict(o.test) is verdict]

    def plain(self) -> dict[str, Any]:
        """As JSON takes it: every test with its verdict and its outcomes."""
        tests = {
            test: {"verdict": self.verdict(test).value}
            | {m.value: o[test].plain() for m, o in self.outcomes.items() if test in o}
            for test in self.outcomes[self.mode]
        }
        return {"file": self.file, "mode": self.mode.value, "tests": tests}

    @classmethod
    def read(cls, data: dict[str, Any]) -> Report:
        """Make a verdict from the text of `plain`."""
        report = cls(data["file"], Mode(data["mode"]))
        for test, entry in data["tests"].items():
            for mode in Mode:
                if mode.value in entry:
                    outcome = Outcome.read(entry[mode.value])
                    report.outcomes.setdefault(mode, {})[test] = outcome
        return report


def compare(
    root: Path,
    file: str,
    limits: Limits,
    *,
    mode: Mode = Mode.TJ,
    tests: tuple[str, ...] | None = None,
    part: tuple[int, int] = (0, 1),
    watch: Callable[[Mode, Outcome], None] = lambda mode, outcome: None,
) -> Report:
    """Run ``file`` of the tree's ``test`` folder on tj, and its failures again without.

    What seems to fail with tj alone runs once more, each test in a process of its own: tests that
    ran before it in the same process may be the reason, and they did not run without tj.
    """
    kind, report = kind_of(file), Report(file, mode)

    def failures(mode: Mode, tests: tuple[str, ...] | None, limits: Limits) -> tuple[str, ...]:
        job = Run(root / "test" / file, kind, mode, tests, part)
        outcomes = run(job, limits, lambda outcome: watch(mode, outcome))
        report.outcomes.setdefault(mode, {}).update(outcomes)
        return tuple(o.test for o in outcomes.values() if o.status.bad)

    failed = failures(mode, tests, limits)
    for reference in references(kind):
        if failed:
            again = failures(reference, failed, limits)
            failed = tuple(test for test in failed if test not in again)
    if failed and not limits.each:
        failures(mode, failed, replace(limits, each=True))
    return report

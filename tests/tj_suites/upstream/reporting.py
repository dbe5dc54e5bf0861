"""Reports on tests as unittest runs them."""

from __future__ import annotations

import time
import traceback
import unittest
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tj_suites.upstream.outcome import UNEXPECTED, Outcome, Status, last_lines

__all__ = ["Reporting", "name_of"]


class Reporting(unittest.TestResult):
    """Reports on every test as it begins and as it ends."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.ended: set[str] = set()
        self.elsewhere = Outcome("", Status.GONE, "its class was not set up")
        self._send = send
        self._began = 0.0
        self._name = ""
        self._worst: Outcome | None = None

    def startTest(self, test: unittest.TestCase) -> None:
        """A test begins."""
        self._began, self._worst, self._name = time.monotonic(), None, name_of(test)
        self._send({"begin": self._name})

    def stopTest(self, test: unittest.TestCase) -> None:
        """The test that began has ended."""
        outcome = self._worst or Outcome(self._name, Status.PASSED)
        self.report(replace(outcome, seconds=round(time.monotonic() - self._began, 2)))
        self._name = ""

    def report(self, outcome: Outcome) -> None:
        """Report an outcome, once."""
        if outcome.test not in self.ended:
            self.ended.add(outcome.test)
            self._send({"end": outcome.plain()})

    def escaped(self, test: unittest.TestCase, error: Exception) -> None:
        """An exception left the test's own ``run``."""
        self.report(failure(name_of(test), error))

    def _bad(self, error: Any) -> None:
        if not self._name:
            self.elsewhere = replace(failure("", error[1]), status=Status.GONE)
        elif self._worst is None or self._worst.status is not Status.FAILED:
            self._worst = failure(self._name, error[1])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """An exception in a test is a failure; outside of tests, one of its class."""
        self._bad(err)

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """So is one in a part of a test."""
        if err is not None:
            self._bad(err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """A skipped test, unless something failed before; outside of tests, a skipped class."""
        skipped = Outcome(self._name, Status.SKIPPED, str(reason)[:200])
        if self._name:
            self._worst = self._worst or skipped
        else:
            self.elsewhere = skipped

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        """A test that is expected to fail, and does not, fails; see `Report.verdict`."""
        self._worst = Outcome(self._name, Status.FAILED, UNEXPECTED)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        """A test that should fail, and does, passes."""

    def addSuccess(self, test: unittest.TestCase) -> None:
        """Nothing to keep."""


def name_of(test: unittest.TestCase) -> str:
    """``Class.test_name``."""
    return f"{type(test).__name__}.{test._testMethodName}"


def failure(name: str, error: BaseException) -> Outcome:
    """The outcome of a test that ended with ``error``."""
    text = "".join(traceback.format_exception(error))
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    return Outcome(name, Status.FAILED, summary[:400], last_lines(text))

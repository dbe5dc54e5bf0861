"""Runs tests of one file, in a process that may die of it.

It reads what to do from standard input, and writes one line of JSON for each test that begins and
each that ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
import unittest
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tj_suites.upstream import loading
from tj_suites.upstream.kinds import Kind, Mode
from tj_suites.upstream.outcome import Outcome, Status
from tj_suites.upstream.reporting import Reporting, name_of

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Order", "main"]


@dataclass(frozen=True, slots=True)
class Order:
    """Order to a process; ``tests`` None means all."""

    file: str
    kind: str
    mode: str
    tests: list[str] | None
    memory: int
    """Limit of the process's address space, in bytes."""
    parts: int = 1
    """Of so many parts, by the hash of a test's name, one runs if ``tests`` is None."""
    part: int = 0
    """Its number."""
    interpret: bool = False
    """Run regions operator by operator."""

    def takes(self, test: str) -> bool:
        """Tell whether a test is in the part that runs."""
        return zlib.crc32(test.encode()) % self.parts == self.part


def _guarded(test: unittest.TestCase, result: Reporting) -> unittest.TestCase:
    """The test, whose ``run`` lets no exception out."""
    run = test.run

    def guarded(given: unittest.TestResult | None = None) -> None:
        try:
            run(given)
        except Exception as error:
            result.escaped(test, error)

    vars(test)["run"] = guarded
    return test


def _replace(order: Order, result: Reporting) -> None:
    """Change PyTorch as the order says. A process that changes nothing does not import it here."""
    from tj_suites.upstream import interpreting, replacing

    if order.interpret:
        interpreting.install()
    replacing.replace(Kind(order.kind), Mode(order.mode))
    replacing.hide(result)


def _adapt(order: Order, module: ModuleType) -> None:
    """Change what the file has defined."""
    if Mode(order.mode) is not Mode.PLAIN:
        from tj_suites.upstream import replacing

        replacing.adapt(Kind(order.kind), Mode(order.mode), module)


def run(order: Order, tell: Callable[[dict[str, Any]], None]) -> None:
    """Run the tests of an order, with the set-up of their classes."""
    result = Reporting(tell)
    if Mode(order.mode) is not Mode.PLAIN:
        _replace(order, result)
    loaded = loading.tests_of(Path(order.file), lambda module: _adapt(order, module))
    found = {name_of(test): test for test in loaded}
    names = [n for n in found if order.takes(n)] if order.tests is None else order.tests
    tell({"tests": names})
    for name in names:
        if name not in found:
            result.report(Outcome(name, Status.GONE, "not in the file"))
    tests = [_guarded(found[name], result) for name in names if name in found]
    unittest.TestSuite(tests).run(result)
    for name in names:
        result.report(replace(result.elsewhere, test=name))


def main() -> None:
    """Do what standard input says."""
    order = Order(**json.load(sys.stdin))
    resource.setrlimit(resource.RLIMIT_AS, (order.memory, order.memory))
    faulthandler.enable()
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.argv = [order.file]

    def tell(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=report, flush=True)

    run(order, tell)
    tell({"done": True})
    # Threads and libraries that tests leave behind have nothing to say any more.
    os._exit(0)


if __name__ == "__main__":
    main()

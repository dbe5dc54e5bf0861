"""The command: ``python -m tj_conformance.upstream PATH [FILES...]``.

The exit status is 1 if tests fail with tj alone that are not listed, or are listed and do not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tj_conformance.upstream import known, stored
from tj_conformance.upstream.compare import compare
from tj_conformance.upstream.kinds import FILES, Mode
from tj_conformance.upstream.outcome import Outcome
from tj_conformance.upstream.running import Limits
from tj_conformance.upstream.table import table

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says."""
    args = _parser().parse_args(arguments)
    mode, limits = Mode(args.mode), Limits(args.seconds, int(args.memory * (1 << 30)), args.each)
    reports, wrong = [], 0
    for file, tests in _jobs(args).items():
        report = compare(args.path, file, limits, mode=mode, tests=tests, watch=_watch)
        reports.append(report)
        if args.json:
            stored.write(args.json, reports)
        for line in known.disagreements(report, known.KNOWN if mode is Mode.TJ else ()):
            wrong += 1
            print(f"{file}: {line}", flush=True)
    print(*table(reports), sep="\n")
    return int(wrong > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tj_conformance.upstream", description=__doc__)
    add = parser.add_argument
    add("path", type=Path, help="PyTorch's sources: the folder with test/")
    add("files", nargs="*", help="below test/; left out, those of the table in the documentation")
    add("--mode", default="tj", choices=("tj", "jit"), help="tj as a backend, or tj.jit")
    add("--test", action="append", help="only this one, Class.test_name; may be repeated")
    add("--only-failed", type=Path, metavar="JSON", help="what failed with tj alone there")
    add("--json", type=Path, help="where to write every test with its outcomes")
    add("--seconds", type=float, default=Limits().seconds, help="for one test")
    add("--memory", type=float, default=Limits().memory / (1 << 30), help="GiB of a process")
    add("--each", action="store_true", help="a process for each test")
    return parser


def _jobs(args: argparse.Namespace) -> dict[str, tuple[str, ...] | None]:
    """Which tests of which files; None for all."""
    if args.only_failed:
        failed = stored.failed(args.only_failed)
        return {f: tests for f, tests in failed.items() if f in (args.files or failed)}
    tests = tuple(args.test) if args.test else None
    return dict.fromkeys(args.files or FILES, tests)


def _watch(mode: Mode, outcome: Outcome) -> None:
    """Say what goes on, to standard error."""
    if outcome.status.bad:
        line = f"{mode.value}: {outcome.test}: {outcome.status.value}: {outcome.summary[:200]}"
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

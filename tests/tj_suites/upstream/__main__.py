"""The command: ``python tests/tj_suites upstream PATH [FILES...]``.

The exit status is 1 if tests fail with tj alone that are not listed, or are listed and do not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tj_suites.upstream import known, stored
from tj_suites.upstream.compare import compare
from tj_suites.upstream.kinds import EXACT, INSTALLED, Mode
from tj_suites.upstream.running import Limits
from tj_suites.upstream.table import table

if TYPE_CHECKING:
    from tj_suites.upstream.outcome import Outcome

__all__ = ["main"]

EXACTLY = {
    "TJ_PLUGINS": "torch,autograd,autocast,subclass",
    "TJ_CHECK": "2",
    "TJ_STRICT": "1",
    "TJ_FULLGRAPH": "0",
}
"""The variables of the exact configuration; graphs may break."""

INSTALLED_ONLY = {"TJ_DISABLE": "example_exec,example_fuser,example_subclass"}
"""As installed, tj has no options; examples are in a workspace, not among what is installed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says."""
    args = _parser().parse_args(arguments)
    limits = Limits(args.seconds, int(args.memory * (1 << 30)), args.each, args.interpret)
    os.environ |= EXACTLY if args.exact else INSTALLED_ONLY
    reports, wrong = [], 0
    for file, mode, tests in _jobs(args):
        report = compare(
            args.path, file, limits, mode=mode, tests=tests, part=args.part, watch=_watch
        )
        reports.append(report)
        if args.json:
            stored.write(args.json, reports)
        for line in known.disagreements(report):
            wrong += 1
            print(f"{file}: {line}", flush=True)
    print(*table(reports), sep="\n")
    return int(wrong > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tj_suites.upstream", description=__doc__)
    add = parser.add_argument
    add("path", type=Path, help="PyTorch's sources: the folder with test/")
    add("files", nargs="*", help="below test/; left out, those of a table in the documentation")
    add("--exact", action="store_true", help="PyTorch's kernels alone, to the bit, all checked")
    add("--mode", choices=[m.value for m in Mode], help="instead of the file's own")
    add("--part", type=_part, default=(0, 1), metavar="K/N", help="the k-th of n parts, by names")
    add("--test", action="append", help="only this one, Class.test_name; may be repeated")
    add("--only-failed", type=Path, metavar="JSON", help="what failed with tj alone there")
    add("--json", type=Path, help="where to write every test with its outcomes")
    add("--seconds", type=float, default=Limits().seconds, help="for one test")
    add("--memory", type=float, default=Limits().memory / (1 << 30), help="GiB of a process")
    add("--interpret", action="store_true", help="regions run by PyTorch, operator by operator")
    add("--each", action="store_true", help="a process for each test")
    return parser


def _jobs(args: argparse.Namespace) -> Iterator[tuple[str, Mode, tuple[str, ...] | None]]:
    """Tests by file and mode; None for all."""
    tests = tuple(args.test) if args.test else None
    if args.only_failed:
        for (file, mode), failed in stored.failed(args.only_failed).items():
            if not args.files or file in args.files:
                yield file, mode, failed
        return
    for file in args.files or (EXACT if args.exact else INSTALLED):
        modes = (EXACT | INSTALLED).get(file, (Mode.TJ,))
        for mode in (Mode(args.mode),) if args.mode else modes:
            yield file, mode, tests


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    return int(part), int(parts)


def _watch(mode: Mode, outcome: Outcome) -> None:
    """Say what goes on, to standard error."""
    if outcome.status.bad:
        line = f"{mode.value}: {outcome.test}: {outcome.status.value}: {outcome.summary[:200]}"
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

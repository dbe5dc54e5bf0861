"""The command ``tj conformance executor NAME``."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from tj_core.extend import TjError, file_to_write

from tj_conformance.databases.tally import ALL, part_of
from tj_conformance.executor.html import page
from tj_conformance.executor.kit import AMOUNTS, Kit
from tj_conformance.executor.operations import DTYPES, matching
from tj_conformance.executor.subject import subject
from tj_conformance.executor.terminal import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from tj_conformance.executor.subject import Subject

__all__ = ["main", "parser"]

STDOUT = Path("-")


def parser(prog: str = "tj conformance executor") -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(prog=prog, description="Hold an executor against eager PyTorch.")
    made.add_argument("name", metavar="NAME", help="the executor; `tj plugins` lists plugins")
    made.add_argument(
        "--op", metavar="PATTERN", action="append", default=[],
        help="operations of op_db, as in '*norm' (several: --op A --op B)",
    )  # fmt: skip
    made.add_argument("--dtype", metavar="NAME", action="append", choices=DTYPES)
    made.add_argument("--device", metavar="NAME", help="where tensors are, as cuda; PyTorch's own")
    made.add_argument("--part", metavar="K/N", type=part_of, default=ALL, help="of the operations")
    made.add_argument("--seconds", type=float, default=float("inf"), help="no new operation after")
    amount = made.add_mutually_exclusive_group()
    amount.add_argument("--fast", dest="amount", action="store_const", const="fast")
    amount.add_argument("--full", dest="amount", action="store_const", const="full")
    made.set_defaults(amount="usual")
    made.add_argument("--bitwise", action="store_true", help="values must be equal to the bit")
    made.add_argument("--first", action="store_true", help="end at the first finding")
    made.add_argument(
        "--json", metavar="FILE", nargs="?", const=STDOUT, type=file_to_write,
        help="without a file print it, after NAME",
    )  # fmt: skip
    made.add_argument("--html", metavar="FILE", type=file_to_write)
    return made


def main(arguments: list[str], find: Callable[[str], Subject] = subject) -> int:
    """Run the command; 1 if the executor, which ``find`` finds by its name, has a fault."""
    given = parser().parse_args(arguments)
    with torch.device(given.device) if given.device else contextlib.nullcontext():
        return _run(given, find(given.name))


def _run(given: argparse.Namespace, tested: Subject) -> int:
    """Run the kit, show and write what it found; 1 if that is a fault."""
    region = tested.executor.fusion is not None
    for pattern in given.op:
        if not matching([pattern]):
            raise TjError(f"no operation of op_db fits {pattern}", hint="as in --op '*norm'")
    operations = given.part.of(matching(given.op, region=region))
    dtypes = tuple(given.dtype or DTYPES)
    kit = Kit(tested, AMOUNTS[given.amount], given.bitwise, given.first, dtypes, given.seconds)
    for cell in kit.run(operations):
        if cell.takes or cell.findings:
            print(f"{cell.operation}, {cell.dtype}: {cell.text}", file=sys.stderr, flush=True)
    if given.op or given.part != ALL:
        kit.report.untried = ()  # other operations may reach them
    show(kit.report, Console(stderr=given.json == STDOUT))
    if given.json:
        text = json.dumps(kit.report.as_dict(), indent=2)
        print(text) if given.json == STDOUT else given.json.write_text(f"{text}\n", "utf-8")
    if given.html:
        given.html.write_text(page(kit.report), "utf-8")
    return int(bool(kit.report.findings))

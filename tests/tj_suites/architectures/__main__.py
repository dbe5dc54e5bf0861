"""The table of architectures: ``python tests/tj_suites architectures [--json FILE] [NAME ...]``.

Each runs in inference and in training, exact and as installed. A row that differs makes the exit
code 1. Rows that are in the file already are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tj_suites.architectures import ARCHITECTURES, MODES, Architecture, Report, compared

CONFIGURATIONS = {"exact": False, "installed": True}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, and print a line for each as it comes."""
    parser = argparse.ArgumentParser(prog="tj_suites.architectures", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all architectures by default")
    parser.add_argument("--json", type=Path, help="a file that keeps what was found")
    parser.add_argument("--only", choices=CONFIGURATIONS, help="one configuration")
    given = parser.parse_args(arguments)
    known: dict[str, Any] = {}
    if given.json and given.json.exists():
        known = json.loads(given.json.read_text("utf-8"))
    wanted = [a for a in ARCHITECTURES if not given.names or _named(a, given.names)]
    chosen = [given.only] if given.only else list(CONFIGURATIONS)
    wrong = 0
    for architecture in wanted:
        row = known.setdefault(architecture.title, {"group": architecture.group})
        for configuration in chosen:
            for mode in MODES:
                key = f"{configuration} {mode}"
                if key not in row:
                    row[key] = asdict(_tried(architecture, mode, CONFIGURATIONS[configuration]))
                wrong += bool(row[key]["problems"])
        _say(architecture, row)
        if given.json:
            given.json.write_text(json.dumps(known, indent=1), "utf-8")
    print(f"{len(wanted)} architectures, {wrong} runs that differ")
    return int(wrong > 0)


def _named(architecture: Architecture, names: Sequence[str]) -> bool:
    return any(name in architecture.title for name in names)


def _tried(architecture: Architecture, mode: str, installed: bool) -> Report:
    torch.compiler.reset()
    try:
        return compared(architecture, mode, installed=installed)
    except Exception as error:  # the row says so
        traceback.print_exc()
        return Report((f"raises {type(error).__name__}: {str(error)[:200]}",), (), 0.0)


def _say(architecture: Architecture, row: dict[str, Any]) -> None:
    cells = {k: Report(**v) for k, v in row.items() if isinstance(v, dict)}
    said = "; ".join(f"{k}: {report.text}" for k, report in cells.items())
    print(f"{architecture.group:18} {architecture.title:36} {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

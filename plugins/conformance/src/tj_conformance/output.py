"""Output of a suite: differences as they are found, and figures at last, as text or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from tj_conformance.suites import usage

__all__ = ["Output", "suite_parser"]


def suite_parser(module: str) -> argparse.ArgumentParser:
    """Make the parser of the suite of ``module``, with ``--json``."""
    made = argparse.ArgumentParser(prog=usage(module))
    made.add_argument("--json", action="store_true", help="print JSON, and the text to stderr")
    return made


@dataclass
class Output:
    """Output of one run of a suite; where it is ``json``, all text goes to stderr."""

    json: bool
    differences: list[str] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: object) -> None:
        """Print ``text``."""
        print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

    def difference(self, text: str) -> None:
        """Print a program that differs, or a disagreement with a table."""
        self.differences.append(text)
        self.say(text)

    def figure(self, text: object, **figures: Any) -> None:
        """Print ``text``, a line of ``figures``."""
        self.figures.append(figures)
        self.say(text)

    def end(self, wrong: object) -> int:
        """Print the JSON, and return the exit status: 1 if anything is ``wrong``."""
        if self.json:
            data = {"passed": not wrong, "differences": self.differences, "figures": self.figures}
            print(json.dumps(data, indent=2))
        return int(bool(wrong))

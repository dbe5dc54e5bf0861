"""The suites of comparisons by name, each a module that runs as ``tj conformance NAME``."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SUITES", "usage"]

SUITES: Mapping[str, tuple[str, str]] = {
    "executor": ("executor.__main__", "an executor against eager: the kit for its author"),
    "fuzz": ("programs.fuzz", "made-up programs that view, write and alias"),
    "gradients": ("gradients.tally", "gradients of op_db and module_db"),
    "installed": ("installed.__main__", "families of programs, with all that is installed"),
    "names": ("names.run", "made-up programs with hostile names"),
    "orders": ("gradients.orders", "made-up programs that differentiate"),
    "own": ("gradients.own", "made-up programs with backwards of their own"),
    "tally": ("databases.tally", "op_db, and calls that must raise"),
}
"""The module of each suite, below this package, and its subject."""


def usage(module: str) -> str:
    """The command that runs the suite of ``module``, for messages."""
    short = module.removeprefix(f"{__package__}.")
    names = {place: name for name, (place, _) in SUITES.items()}
    found = names.get(short) or names[f"{short}.__main__"]
    return f"tj conformance {found}"

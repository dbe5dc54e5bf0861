"""Subcommands of ``tj``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.contract.fields import FUNCTION, NAME, check_fields

if TYPE_CHECKING:
    import argparse

__all__ = ["OWN_COMMANDS", "CliCommand"]


@dataclass(frozen=True, slots=True)
class CliCommand:
    """A subcommand of ``tj``.

    ``run`` gets the parsed arguments and the `Session`, and returns the exit status. (The session
    holds the commands, so its class cannot be named here.)
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Any], int]

    def __post_init__(self) -> None:
        check_fields(self, name=NAME, configure=FUNCTION, run=FUNCTION)


OWN_COMMANDS = frozenset({"cache", "compare", "config", "doctor", "explain", "plugins", "trace"})
"""The core's own commands; a plugin's have other names."""

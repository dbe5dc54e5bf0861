"""Parts that made-up modules are put together from."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

__all__ = ["Part", "numbers"]

NUMBERS = (
    *("0", "1", "2", "0.0", "-0.0", "1.0", "True", "False", "float('nan')", "float('inf')", "3"),
    *("-1", "None", "'a'", "1j", "torch.tensor(2.0)", "(1,)", "torch.tensor(2)", "2**40"),
    "Color.RED",
)
"""Values that take the place of a number."""


def numbers(place: str) -> str:
    """Changes that put another value into ``place``."""
    return "".join(f"{place} = {value}\n" for value in NUMBERS)


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of a module's ``__init__`` and ``forward``, and changes between calls, one a line.

    ``members`` are lines of its class. In ``forward``, ``x`` is a matrix of four columns, and
    ``out`` a list of further results. In a change, ``m`` is the module, and ``w`` the
    `tj_conformance.states.running.World`. ``#`` stands for the number of the part.
    """

    init: str
    forward: str
    changes: str
    members: str = ""

    def numbered(self, text: str, number: int) -> list[str]:
        """The lines of one of the texts."""
        return textwrap.dedent(text).strip("\n").replace("#", str(number)).splitlines()

"""The sizes of one program that are symbols, as its frontend knows them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from tj_core.ir.proxy import Dim

__all__ = ["ProgramSizes"]


class ProgramSizes(Protocol):
    """What passes may ask of the symbols of the program that they compile, and add to its guards.

    A frontend whose programs have symbols gives it to `Jitted.compile`, so that finished programs
    with symbols are kept on disk.
    """

    def known(self, names: Collection[str]) -> str | None:
        """All that decisions on symbols ``names`` follow from: their values in the traced call, and
        the guards so far. None for symbols whose program is not to be kept."""
        ...

    @property
    def assumed(self) -> tuple[str, ...]:
        """The conditions that passes have made guards of the program so far."""
        ...

    def assume(self, text: str) -> None:
        """Make a condition, true of the traced call, a guard of the program."""
        ...

    def dim(self, size: str) -> Dim:
        """The size that an expression spells."""
        ...

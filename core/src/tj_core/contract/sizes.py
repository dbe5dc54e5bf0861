"""The symbolic sizes of one program, as an interface to its frontend."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tj_core.ir.proxy import Dim

__all__ = ["ProgramSizes"]


class ProgramSizes(Protocol):
    """Facts about the symbols of a program, and its guards on sizes, for passes to read and add to.

    A frontend whose programs have symbols gives the object to `Jitted.compile`, so that finished
    programs with symbols are kept on disk.
    """

    def known(self, names: Collection[str]) -> str | None:
        """The basis of all decisions on symbols ``names``: their values in the traced call, and
        the guards so far. None for symbols whose program is not to be kept."""
        ...

    @property
    def assumed(self) -> tuple[str, ...]:
        """The conditions that passes have turned into guards of the program so far."""
        ...

    def assume(self, text: str) -> None:
        """Add the condition ``text``, true in the traced call, to the guards of the program."""
        ...

    def dim(self, size: str) -> Dim:
        """The size with the expression ``size``."""
        ...

"""Effects: what a call does besides computing its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tj_core.ir.proxy import Proxy

__all__ = ["NO_EFFECTS", "Alias", "Effects", "in_one_order"]


@dataclass(frozen=True, slots=True)
class Alias:
    """One alias: output ``output`` shares storage with an argument, an output or an internal value.

    ``output`` and ``index`` count the proxies among the flattened outputs and arguments.
    ``identical`` means that the two are one Python object.
    """

    output: int
    kind: Literal["arg", "out", "internal"]
    index: int = 0
    identical: bool = False


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one call.

    ``mutates``: arguments (flat indices of proxies) whose data it writes.
    ``rebinds``: arguments whose metadata it changes, each with the proxy they are afterwards.
    ``aliases``: outputs that share storage.
    ``ordered``: resources whose calls keep their order and are never merged or removed, such as
    ``random:cpu``, ``collective:<group>``, ``stream``, ``side_effect``; see `in_one_order`.
    ``marks``: further facts that the dialect declares of arguments, as (name, argument, number).
    ``copies_back``: the call writes a value to an input as the last act of a functional program.
    """

    mutates: tuple[int, ...] = ()
    rebinds: tuple[tuple[int, Proxy], ...] = ()
    aliases: tuple[Alias, ...] = ()
    ordered: tuple[str, ...] = ()
    marks: tuple[tuple[str, int, int], ...] = ()
    copies_back: bool = False

    def marked(self, name: str) -> dict[int, int]:
        """The arguments that have the mark ``name``, each with its number."""
        return {index: number for mark, index, number in self.marks if mark == name}

    @property
    def written(self) -> tuple[int, ...]:
        """The arguments whose data or metadata the call changes."""
        return (*self.mutates, *(index for index, _ in self.rebinds))

    @property
    def removable(self) -> bool:
        """Test if the call may be removed once none of its outputs is used."""
        return not (self.mutates or self.rebinds or self.ordered)


NO_EFFECTS = Effects()


def in_one_order(first: str, second: str) -> bool:
    """Test if calls of these resources keep their order: equal ones, and one and a part of it.

    ``collective`` stands for all groups: calls of it keep their order with ``collective:0``, too.
    """
    one, other = f"{first}:", f"{second}:"
    return one.startswith(other) or other.startswith(one)

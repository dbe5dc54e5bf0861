"""Effects: what a call does besides computing its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tj_core.ir.proxy import Proxy

__all__ = ["NO_EFFECTS", "Alias", "Effects"]


@dataclass(frozen=True, slots=True)
class Alias:
    """Output ``output`` shares storage with argument or output ``index``, or an internal value.

    Counts are of proxies, arguments and outputs each flattened in order. ``identical`` means that
    the two are one Python object.
    """

    output: int
    kind: Literal["arg", "out", "internal"]
    index: int = 0
    identical: bool = False


@dataclass(frozen=True, slots=True)
class Effects:
    """What a call does besides computing its outputs.

    ``mutates``: arguments (flat indices of proxies) whose data it writes.
    ``rebinds``: arguments whose metadata it changes, each with the proxy they are afterwards.
    ``aliases``: outputs that share storage.
    ``ordered``: resources whose calls keep their order and are never merged or removed, such as
    ``random:cpu``, ``collective``, ``stream``, ``side_effect``.
    ``marks``: what the dialect declares of arguments besides, as (name, argument, number).
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
    def removable(self) -> bool:
        """Whether a call none of whose outputs is used may go."""
        return not (self.mutates or self.rebinds or self.ordered)


NO_EFFECTS = Effects()

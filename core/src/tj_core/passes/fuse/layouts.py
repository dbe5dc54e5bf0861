"""Layouts that executors choose, in place of declared strides, for values between programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tj_core.contract.decline import ask
from tj_core.edit.bodies import formals

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor
    from tj_core.contract.fusion import Fusion
    from tj_core.ir.trace import BoundSymbol

__all__ = ["Choice", "Layouts"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The strides that ``executor`` has chosen for a value."""

    executor: str
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layouts:
    """The values whose strides regions may choose, and the inputs with chosen strides.

    ``readers``: the values, by name, that the program returns only to later programs, with their
    reading calls there. ``chosen``: inputs whose strides differ from the declared ones.
    """

    readers: Mapping[str, Sequence[BoundSymbol]] = field(default_factory=dict)
    chosen: Mapping[str, Choice] = field(default_factory=dict)

    def may_choose(self, executor: Executor, name: str) -> bool:
        """Decide if ``executor`` may choose the strides of a value: it must run all its readers."""
        fusion = executor.fusion
        if fusion is None or name not in self.readers:
            return False
        return all(_takes(executor, fusion, call, name) for call in self.readers[name])

    def strides(self, executor: str, name: str) -> tuple[int, ...] | None:
        """The strides that ``executor`` has chosen for a value, or None."""
        choice = self.chosen.get(name)
        return choice.strides if choice is not None and choice.executor == executor else None


def _takes(executor: Executor, fusion: Fusion, call: BoundSymbol, name: str) -> bool:
    """Test if ``executor`` takes ``call``, or all parts of it that read the value ``name``."""
    if ask(executor.owner, fusion.can_fuse, call) is None:
        return True
    if call.body is None:
        return False
    inside = formals(call)[name].name
    readers = (c for c in call.body.calls if any(p.name == inside for p in c.flat_args))
    return all(_takes(executor, fusion, reader, inside) for reader in readers)

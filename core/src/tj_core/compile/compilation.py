"""What a trace became: every pass's trace, the claims, the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from tj_core.compile.codegen import Program
from tj_core.compile.kernels import RegionKernel
from tj_core.contract.decline import Decline
from tj_core.ir.trace import Trace
from tj_core.passes.claim import ClaimRecord

__all__ = ["Compilation", "Counts", "Later", "Track"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Counts:
    """How a program came about.

    Of its regions, how many were compiled, found in the session, and ``kept`` on disk;
    ``finished`` programs, 1 or 0, were kept on disk themselves.
    """

    compiled: int = 0
    found: int = 0
    kept: int = 0
    finished: int = 0


class Later(Sequence[T]):
    """A sequence of which only the ``first`` and the ``last`` items are there already.

    ``between`` makes the others when they are asked for.
    """

    def __init__(
        self, first: Sequence[T], between: Callable[[], Sequence[T]], last: Sequence[T]
    ) -> None:
        self.first, self.between, self.last = tuple(first), between, tuple(last)

    @property
    def whole(self) -> tuple[T, ...]:
        """All items."""
        return (*self.first, *self.between(), *self.last)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: Any) -> Any:
        """An item, or a tuple of them."""
        if isinstance(index, int):
            if 0 <= index < len(self.first):
                return self.first[index]
            if -len(self.last) <= index < 0:
                return self.last[index]
        return self.whole[index]

    def __len__(self) -> int:
        """How many items there are."""
        return len(self.whole)


@dataclass(frozen=True, slots=True)
class Track:
    """What one trace became on its way to a program; ``regions`` are those that it calls."""

    traces: Sequence[Trace]
    claims: Sequence[ClaimRecord]
    program: Program
    regions: tuple[RegionKernel, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """Everything one acquired trace became: each pass's trace, the claims, the program.

    ``function`` is what runs: the program's, or what a plugin made of several programs or put
    around it. ``others`` are the programs beside the main one by name: ``"backward"``, and
    ``"epilogue"``, what stands around; those not yet compiled have a trace only. ``declined`` are
    the transforms that did not take the program, and why. ``regions`` are those that the main
    program calls, ``counts`` how it and they came about.
    """

    traces: Sequence[Trace]
    claims: Sequence[ClaimRecord]
    program: Program
    function: Callable[..., Any]
    seconds: dict[str, float]
    others: dict[str, Track | Trace] = field(default_factory=dict)
    declined: tuple[tuple[str, Decline], ...] = ()
    regions: tuple[RegionKernel, ...] = ()
    counts: Counts = field(default_factory=Counts)

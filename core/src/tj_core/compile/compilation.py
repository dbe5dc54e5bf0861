"""The result of a compilation: every pass's trace, the claims, the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from tj_core.compile.behind import Behind
    from tj_core.compile.codegen import Program
    from tj_core.compile.region_kernels import RegionKernel
    from tj_core.contract.decline import Decline
    from tj_core.ir.trace import Trace
    from tj_core.passes.claim_record import ClaimRecord

__all__ = ["Compilation", "Counts", "Later", "Track"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Counts:
    """The origin of a program and its regions.

    ``compiled``, ``found`` and ``kept`` are the numbers of regions that were compiled, found in the
    session, and read from disk; ``finished`` is 1 if the program itself was read from disk, else 0.
    """

    compiled: int = 0
    found: int = 0
    kept: int = 0
    finished: int = 0


class Later(Sequence[T]):
    """A lazy sequence: ``between`` makes the items between the ``first`` and the ``last`` ones."""

    def __init__(
        self, first: Sequence[T], between: Callable[[], Sequence[T]], last: Sequence[T]
    ) -> None:
        self.first, self.between, self.last = tuple(first), between, tuple(last)

    @property
    def whole(self) -> tuple[T, ...]:
        """The whole sequence as a tuple; makes the items between."""
        return (*self.first, *self.between(), *self.last)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: Any) -> Any:
        """An item, or a tuple of them."""
        # An item at either end is there without making those between.
        if isinstance(index, int):
            if 0 <= index < len(self.first):
                return self.first[index]
            if -len(self.last) <= index < 0:
                return self.last[index]
        return self.whole[index]

    def __len__(self) -> int:
        """The number of items; makes the items between."""
        return len(self.whole)


@dataclass(frozen=True, slots=True)
class Track:
    """The traces, claims and program of one trace; ``regions`` are those that the program calls."""

    traces: Sequence[Trace]
    claims: Sequence[ClaimRecord]
    program: Program
    regions: tuple[RegionKernel, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """The result for one acquired trace: each pass's trace, the claims, the program.

    ``function`` is the function to call: the program's, or a plugin's around one or several
    programs. ``others`` are the programs beside the main one by name: ``"backward"``, and
    ``"epilogue"`` for the code around it; a program that is not compiled yet is a trace.
    ``declined`` are the transforms that declined the program, with reasons. ``regions`` are those
    that the main program calls, ``counts`` the origin of program and regions.

    ``variants`` are compiled later, for inputs on which the program is wrong although its guards
    hold. ``wrapped`` are the transforms that put functions of theirs around the program, or
    assembled it, with their payloads for `Transform.restore`. ``behind`` is set if kernels are
    compiled behind the program. ``further`` are the further programs of an assembled function by
    form, see `Behind.between`, each with the form that its trace in ``others`` is for, ``default``.
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
    variants: list[Compilation] = field(default_factory=list)
    wrapped: tuple[tuple[str, Any], ...] = ()
    behind: Behind | None = None
    further: tuple[Any, ...] = ()

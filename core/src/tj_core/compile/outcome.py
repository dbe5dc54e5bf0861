"""What a pass says beside the trace that it returns: how its program runs, or that it declines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tj_core.compile.codegen import Program
from tj_core.compile.compilation import Compilation
from tj_core.contract.decline import Decline
from tj_core.ir.trace import Trace

__all__ = ["NOT_KEPT", "Assemble", "Assembly", "Outcome", "Recompiler", "Wrap", "Wrapper"]


class Recompiler(Protocol):
    """Compiles a program once more, when a call needs another form of it than the one that runs."""

    def acquired(self) -> Compilation:
        """The program as it was acquired: no transforms to stages, and no call is removed."""
        ...

    def compiled(self, trace: Trace) -> Compilation:
        """``trace``, which stands for the program at stage ACQUIRED, through all passes."""
        ...

    def keep(self, name: str, compilation: Compilation) -> None:
        """Show what ``compilation`` went through under ``name``, beside the program's traces."""
        ...


NOT_KEPT: Any = object()
"""What was said cannot be said again in another process."""

Assemble = Callable[[Program, Callable[[str, Trace], Program]], Callable[..., Any]]
Wrap = Callable[[Callable[..., Any], Recompiler], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Assembly:
    """Several programs in the place of one; see `PassContext.assemble`."""

    others: Mapping[str, Trace]
    assemble: Assemble
    boxed: bool = False
    flexible: Collection[str] = frozenset()
    kept: Any = NOT_KEPT


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What runs around a program; see `PassContext.wrap`."""

    wrap: Wrap
    epilogue: Trace | None = None
    kept: Any = NOT_KEPT


@dataclass(slots=True)
class Outcome:
    """What one run of a transform said."""

    declined: Decline | None = None
    skipped: bool = False
    assembly: Assembly | None = None
    wrappers: list[Wrapper] = field(default_factory=list)

    def kept(self) -> list[Any]:
        """What all that was said is said again from, one by one: `NOT_KEPT`, where it is not."""
        assembly = [] if self.assembly is None else [self.assembly.kept]
        return [*assembly, *(wrapper.kept for wrapper in self.wrappers)]

"""The answer of a transform: a trace, with wrappers and assemblies of programs, or a decline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tj_core.compile.codegen import Program
from tj_core.ir.trace import Trace

if TYPE_CHECKING:
    from tj_core.compile.compilation import Compilation
    from tj_core.contract.decline import Decline

__all__ = ["NOT_KEPT", "Assemble", "Assembly", "Outcome", "Recompiler", "Wrap", "Wrapper"]


class Recompiler(Protocol):
    """The compiler of further forms of a program, for calls that the first form does not fit."""

    def acquired(self, *, fused: bool = True) -> Compilation:
        """The acquired program, without transforms to stages and without removal of calls.

        If not ``fused``, each call runs by itself, in the order of the program.
        """
        ...

    def compiled(self, trace: Trace) -> Compilation:
        """The compilation of ``trace``, a substitute for the acquired trace, by all passes."""
        ...

    def show(self, name: str, compilation: Compilation) -> None:
        """Show the traces of ``compilation`` under ``name``, beside those of the program."""
        ...


NOT_KEPT: Any = object()
"""The payload of a wrap or assemble call that cannot be restored in another process."""

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
    """A function around a program; see `PassContext.wrap`."""

    wrap: Wrap
    epilogue: Trace | None = None
    kept: Any = NOT_KEPT


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a transform that has more to say than its trace; see `PassContext`.

    ``trace`` is the trace that it returns: the unchanged one if it declined, or skipped its stage.
    """

    trace: Trace
    declined: Decline | None = None
    skipped: bool = False
    assembly: Assembly | None = None
    wrappers: tuple[Wrapper, ...] = ()

    @classmethod
    def of(cls, answer: Trace | Outcome) -> Outcome:
        """The outcome of a transform that returned ``answer``.

        :raises TypeError: for another object.
        """
        if isinstance(answer, Outcome):
            return answer
        if not isinstance(answer, Trace):
            raise TypeError(f"expected a Trace or an Outcome, not {type(answer).__name__}")
        return cls(answer)

    def kept(self) -> list[Any]:
        """The payloads of all assemble and wrap calls; `NOT_KEPT` for one that has none."""
        assembly = [] if self.assembly is None else [self.assembly.kept]
        return [*assembly, *(wrapper.kept for wrapper in self.wrappers)]

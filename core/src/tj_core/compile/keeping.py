"""The finished program of one pipeline run: looked up before the passes, stored after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.compile.kept_programs import Finished, KeptPrograms, Shown
from tj_core.compile.outcome import NOT_KEPT, Outcome
from tj_core.ir.stage import Stage

if TYPE_CHECKING:
    import contextlib

    from tj_core.compile.context import PassContext
    from tj_core.compile.transforms import Ranked
    from tj_core.contract.executors import Executor
    from tj_core.contract.sizes import ProgramSizes
    from tj_core.ir.trace import Trace
    from tj_core.passes.fuse.fuse import FusedTrace

__all__ = ["Keeping"]


@dataclass(frozen=True)
class Keeping:
    """The entry for the program of ``trace``, under ``key`` in ``kept``.

    ``executors`` and ``sizes`` are those of the compilation. ``assumed`` are the conditions on
    sizes that were guards before it. ``said`` has the payloads for `Transform.restore`, by name of
    transform.
    """

    kept: KeptPrograms
    key: str
    trace: Trace
    executors: Sequence[Executor]
    sizes: ProgramSizes | None
    assumed: tuple[str, ...]
    said: list[tuple[str, Any]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        kept: KeptPrograms,
        trace: Trace,
        before: Sequence[Trace],
        transforms: Sequence[Ranked],
        executors: Sequence[Executor],
        sizes: ProgramSizes | None,
        more: object,
    ) -> Keeping | None:
        """The entry for the program of ``trace``; None if it has no key. See `KeptPrograms.key`."""
        key = kept.key(trace, before, transforms, executors, sizes, more)
        if key is None:
            return None
        return cls(kept, key, trace, executors, sizes, sizes.assumed if sizes is not None else ())

    def find(
        self, transforms: Sequence[Ranked], context: Callable[[Ranked], PassContext]
    ) -> tuple[Finished, list[Outcome]] | None:
        """The stored program, with the outcomes that ``transforms`` restore; None if there is none.

        ``context`` makes a context for a transform. The program's conditions on sizes become guards
        again.
        """
        found = self.kept.find(self.key, self.sizes)
        if found is None:
            return None
        outcomes = []
        try:
            for condition in found.assumed:
                assert self.sizes is not None
                self.sizes.assume(condition)
            for name, value in found.said:
                ranked = next(r for r in transforms if r.transform.name == name)
                assert ranked.transform.restore is not None
                again = ranked.transform.restore(context(ranked), value)
                if not isinstance(again, Outcome):
                    raise TypeError(
                        f"restore of {name!r} returned {type(again).__name__}, not Outcome"
                    )
                outcomes.append(again)
        except Exception as error:  # compiled instead: a real fault shows again there
            self.kept.lose(self.key, error)
            return None
        return found, outcomes

    def making(self) -> contextlib.AbstractContextManager[None]:
        """Hold the entry's lock while the program is looked for and, if it is missing, made."""
        return self.kept.entries.making([self.key])

    def note(self, ranked: Ranked, said: Outcome) -> None:
        """Note the payloads of a transform that does not run if the program is found on disk."""
        if ranked.transform.after >= Stage.FUNCTIONAL:
            self.said.extend((ranked.transform.name, value) for value in said.kept())

    def keep(self, fused: FusedTrace, reached: set[Stage], shown: Shown) -> None:
        """Store the finished program, unless a transform has no payload to restore from."""
        if any(value is NOT_KEPT for _, value in self.said):
            return
        now = self.sizes.assumed if self.sizes is not None else ()
        assumed = now[len(self.assumed) :]
        finished = Finished(fused, tuple(self.said), assumed, frozenset(reached), lambda: shown)
        self.kept.keep(self.key, finished, self.trace, self.executors)

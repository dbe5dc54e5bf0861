"""Compiled regions that are kept on disk, for processes that compile the same ones later.

An executor that fuses says what a compiled region is as text (`Fused.kept`), makes the region again
from that (`Fusion.restore`), and says what else the text depends on (`Fusion.fingerprint`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tj_core.contract.executors import Executor
from tj_core.contract.fusion import Fused, FusionRegion
from tj_core.disk import Entries
from tj_core.edit.editor import TraceEditor
from tj_core.ir.proxy import size_hints

__all__ = ["KeptRegions", "are_among"]


def are_among(records: Iterable[object], known: Iterable[object]) -> bool:
    """Whether each of ``records`` is itself one of ``known``; of others nobody knows the code."""
    return {id(record) for record in records} <= {id(record) for record in known}


@dataclass
class KeptRegions:
    """The regions in ``entries``, of a session with ``executors``.

    ``session`` says what all that it compiles depends on; None where that is not known, and nothing
    is kept.
    """

    entries: Entries
    executors: tuple[Executor, ...]
    session: Callable[[], str | None]

    def serves(self, executors: Sequence[Executor]) -> bool:
        """Whether a program's ``executors`` are the session's: of others nothing is known."""
        return are_among(executors, self.executors)

    def find(self, owner: Executor, region: FusionRegion) -> Fused | None:
        """``region`` as an earlier process compiled it, if one has."""
        key = self.key(owner, region)
        text = None if key is None else self.entries.get(key)
        if text is None or owner.fusion is None or owner.fusion.restore is None:
            return None
        try:
            return owner.fusion.restore(region, text)
        except Exception as error:  # it is compiled, which says what is wrong if something is
            self.entries.warn(f"{owner.owner} cannot use what was kept of {region.name}", error)
            return None

    def keep(self, owner: Executor, region: FusionRegion, fused: Fused) -> None:
        """Keep ``region``, which ``owner`` has compiled, if it can be kept."""
        key = self.key(owner, region) if fused.kept else None
        if key is not None:
            title = f"{owner.name}.{region.name}, {len(region.body.calls)} calls"
            self.entries.put(key, fused.kept, title)

    def key(self, owner: Executor, region: FusionRegion) -> str | None:
        """All that the compiled region depends on, as text; None if that is not known."""
        fusion = owner.fusion
        if fusion is None or fusion.restore is None or fusion.fingerprint is None:
            return None
        session, theirs = self.session(), fusion.fingerprint()
        if session is None or theirs is None:
            return None
        program = TraceEditor.program_of(region.body, region.language, region.name)
        laid_out = sorted(region.flexible), sorted(region.strides.items()), region.overwritten
        facts = (owner.name, region.backward, laid_out, size_hints(region.inputs))
        return "\n".join([session, theirs, repr(facts), str(program)])

"""Compiled regions that are kept on disk, for processes that compile the same ones later.

An executor that fuses serialises a compiled region as text (`Fused.kept`), restores the region from
it (`Fusion.restore`), and names everything else that it depends on (`Fusion.fingerprint`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tj_core.edit.editor import TraceEditor
from tj_core.ir.proxy import size_hints

if TYPE_CHECKING:
    import contextlib

    from tj_core.contract.executors import Executor
    from tj_core.contract.fusion import Fused, FusionRegion
    from tj_core.disk import Entries

__all__ = ["KeptRegions", "are_among"]


def are_among(records: Iterable[object], known: Iterable[object]) -> bool:
    """Test if all ``records`` are objects in ``known``; the code of other records is unknown."""
    return {id(record) for record in records} <= {id(record) for record in known}


@dataclass
class KeptRegions:
    """The regions in ``entries``, of a session with ``executors``.

    ``session`` returns a text of everything that its compilations depend on; None if unknown:
    nothing is kept then.
    """

    entries: Entries
    executors: tuple[Executor, ...]
    session: Callable[[], str | None]

    def serves(self, executors: Sequence[Executor]) -> bool:
        """Test if a program's ``executors`` are all the session's."""
        return are_among(executors, self.executors)

    def find(self, owner: Executor, region: FusionRegion) -> Fused | None:
        """``region`` as compiled by an earlier process, or None."""
        key = self.key(owner, region)
        text = None if key is None else self.entries.get(key)
        if text is None or owner.fusion is None or owner.fusion.restore is None:
            return None
        try:
            return owner.fusion.restore(region, text)
        except Exception as error:  # compiled instead: a real fault shows again there
            self.entries.warn(f"{owner.owner} cannot use what was kept of {region.name}", error)
            return None

    def keep(self, owner: Executor, region: FusionRegion, fused: Fused) -> None:
        """Store ``region``, compiled by ``owner``, if it has a text and a key."""
        key = self.key(owner, region) if fused.kept else None
        if key is not None:
            title = f"{owner.name}.{region.name}, {len(region.body.calls)} calls"
            self.entries.put(key, fused.kept, title)

    def making(
        self, owner: Executor, regions: Iterable[FusionRegion]
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the locks of the missing ``regions``, so that this process alone compiles them."""
        keys = (self.key(owner, region) for region in regions)
        return self.entries.making(key for key in keys if key is not None)

    def key(self, owner: Executor, region: FusionRegion) -> str | None:
        """A text of everything that the compiled region depends on; None if unknown."""
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

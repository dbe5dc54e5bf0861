"""Agreements of this process, by group, and the two functions that programs call."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from tj_core.extend import Dialect, Symbol

from tj_distributed.agreement import Agreement
from tj_distributed.sequence import from_text

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tj_distributed.options import Options

__all__ = ["BEGIN", "NAMESPACE", "WAIT", "Groups", "dialect"]

NAMESPACE = "distributed"
BEGIN, WAIT = Symbol(NAMESPACE, "begin"), Symbol(NAMESPACE, "wait")


class Groups:
    """Agreements of the process, one for each group of ranks.

    Of the process, not of a session: ranks count the runs in a group, whoever compiled them.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[weakref.ref[Any], Agreement]] = {}
        self._lock = threading.Lock()

    def agreement(self, name: str, options: Options) -> Agreement:
        """The agreement of the group called ``name``; a new one for a new group of that name."""
        from tj_distributed.adapter import Members, group_of  # imports torch.distributed

        group = group_of(name)
        with self._lock:
            known = self._found.get(name)
            if known is not None and known[0]() is group:
                return known[1]
            if known is not None:
                known[1].close()
            made = Agreement(name, Members(group, "tj"), options)
            self._found[name] = weakref.ref(group), made
            return made

    def runs(self) -> int:
        """Number of programs begun in all groups."""
        return sum(agreement.runs for _, agreement in self._found.values())

    def settled(self) -> bool:
        """True if all ranks of the process's only groups are in programs that agree.

        Not if a group has some ranks only: one of them may wait for a rank in another group, which
        has found that that one does not agree.
        """
        from tj_distributed.adapter import number_of_ranks  # as `agreement` does

        agreements = [agreement for _, agreement in list(self._found.values())]
        return all(a.settled for a in agreements) and all(
            a.members.size == number_of_ranks() for a in agreements
        )

    def check(self) -> None:
        """Raise what any group's ranks have found."""
        for _, agreement in list(self._found.values()):
            agreement.check()

    def explain(self, error: BaseException) -> None:
        """Say of an error of a collective what the ranks were doing.

        :raises RanksDisagreeError: if they have run different collectives.
        """
        for _, agreement in list(self._found.values()):
            agreement.explain(error)


GROUPS = Groups()


def dialect(options: Options) -> Dialect:
    """The dialect of ``begin(group, sequence, reason)`` and ``wait(tensor)``; both return nothing.

    ``reason`` is left out for a program that was compiled for the first call.
    """

    def begin(group: str, text: str, reason: str = "") -> None:
        GROUPS.agreement(group, options).begin(from_text(text), reason)

    def wait(tensor: torch.Tensor) -> None:
        from tj_distributed.waits import wait_for  # as `agreement` does

        wait_for(tensor, GROUPS)

    functions: dict[Symbol, Callable[..., Any]] = {BEGIN: begin, WAIT: wait}

    def resolve(symbol: Symbol) -> Callable[..., Any]:
        if symbol not in functions:
            raise LookupError(symbol.qualname)
        return functions[symbol]

    def fingerprint(symbols: Any) -> str:
        return "1"

    prelude = (f"from tj_core.namespaces import {NAMESPACE}",)
    return Dialect(NAMESPACE, prelude, resolve, fingerprint=fingerprint)

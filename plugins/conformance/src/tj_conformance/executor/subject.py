"""The executor under test: who made it, programs compiled with it, and calls that it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tj_core as tj
from tj_core.extend import Executor, TjError
from tj_core.internal import did_you_mean

from tj_conformance.executor import running

__all__ = ["Subject", "Verdict", "subject"]

BESIDE = ("torch", "autograd")
"""Plugins without which no program with gradients is compiled."""

OPTIONS = {"strict": True, "check": 0, "cache_dir": "none"}
"""Failures are errors; programs are checked as users' are; nothing is found on disk."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``takes``: the executor runs a part of the program; ``declined``: its reasons for others.

    ``symbols`` are the operations that it runs.
    """

    takes: bool
    declined: tuple[str, ...]
    symbols: tuple[str, ...] = ()

    @property
    def knows(self) -> bool:
        """True if the program has calls that the executor takes, or declines for their kind."""
        return self.takes or bool(self.declined)


@dataclass(frozen=True)
class Subject:
    """``executor`` of ``plugin``, in a strict session with few other plugins."""

    executor: Executor
    plugin: str | object
    session: tj.Session

    @property
    def name(self) -> str:
        """The name of the executor."""
        return self.executor.name

    @property
    def owner(self) -> str:
        """Executor, plugin, distribution and version in words."""
        return self.executor.owner

    def jit(self, f: Any, **options: Any) -> Any:
        """Compile ``f`` with the executor, and PyTorch for all that it declines."""
        return tj.jit(f, session=self.session, executors=[self.name], **options)

    def without(self, f: Any, **options: Any) -> Any:
        """Compile ``f`` without the executor."""
        return tj.jit(f, session=self.session, executors=["torch"], **options)

    def verdict(self, jitted: Any) -> Verdict:
        """Calls of the last program of ``jitted`` that the executor took, and that it declined."""
        if not tj.stats(jitted).entries:
            return Verdict(False, ())
        explained = tj.explain(jitted)
        every = (*explained.claims, *chain.from_iterable(explained.others.values()))
        # What the kit puts around an operation to make regions is none of it.
        records = [r for r in every if r.source is None or r.source.file != running.__file__]
        taken = [r.symbol.qualname for r in records if r.executor == self.name]
        reasons = [why for r in records for name, why in r.declined if name == self.name]
        own = [why for why in reasons if not why.startswith("has no claim")]
        return Verdict(bool(taken), tuple(dict.fromkeys(own)), tuple(dict.fromkeys(taken)))

    def claimed(self) -> tuple[str, ...]:
        """The names of the operations that the executor claims, as it spells them."""
        return tuple(rule.key for rule in self.executor.claims)

    @property
    def plugins(self) -> str:
        """The session's plugins as Python."""
        named = isinstance(self.plugin, str)
        first = repr(self.plugin) if named else f"{self.name}_plugin"
        return f"[{', '.join([first, *map(repr, BESIDE)])}]"


def subject(
    name: str,
    plugins: Sequence[str | object] | None = None,
    *,
    session: tj.Session | None = None,
) -> Subject:
    """The executor called ``name`` of one of ``plugins``, names or objects (None: installed ones).

    ``session``, if given, has them loaded.

    :raises TjError: if there is none, or it is PyTorch's own.
    """
    everything = session or tj.Session(plugins)
    found = {e.name: e for e in everything.executors}
    if name not in found:
        raise TjError(
            f"there is no executor {name!r}.{did_you_mean(name, found)}",
            hint=f"there are: {', '.join(sorted(found)) or 'none'}; `tj plugins` lists the "
            "plugins, and why one takes no part",
        )
    if found[name].fallback:
        raise TjError(f"{name!r} runs what others decline: there is nothing to compare it with")
    plugin: str | object = next(p for p, e in everything.plugins.executors() if e.name == name)
    objects = [p for p in plugins or () if not isinstance(p, str)]
    plugin = next((p for p in objects if getattr(p, "tj_name", None) == plugin), plugin)
    made = tj.Session((plugin, *BESIDE), overrides=OPTIONS, start=everything.config.file)
    (record,) = (e for e in made.executors if e.name == name)
    return Subject(record, plugin, made)

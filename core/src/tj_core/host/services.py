"""The interface of a session for frontends and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tj_core.compile.pipeline import Pipeline
    from tj_core.compile.transforms import Transform
    from tj_core.contract.beside import Beside
    from tj_core.contract.executors import Executor
    from tj_core.contract.expansion import Expand
    from tj_core.contract.rules import RuleTable
    from tj_core.host.config import Config
    from tj_core.ir.tags import TagRegistry
    from tj_core.text.language import Language

__all__ = ["Services"]


class Services(Protocol):
    """The interface of `tj_core.host.session.Session` for frontends and commands.

    A session holds the records of frontends and commands; their modules cannot import its class.
    """

    config: Config
    tags: TagRegistry
    tables: dict[str, RuleTable[Any]]
    executors: tuple[Executor, ...]
    language: Language
    beside: Beside
    frontends: tuple[Any, ...]  # of `Frontend`, whose module imports this one

    @property
    def expand(self) -> RuleTable[Expand]:
        """The table of expansions."""
        ...

    def tied(self) -> tuple[tuple[str, str], ...]:
        """The executors that are asked before others by their names alone, each with a text."""
        ...

    def pipeline(
        self,
        transforms: Iterable[Transform] = (),
        executors: Sequence[str | Executor] | None = None,
    ) -> Pipeline:
        """The session's passes, then ``transforms``; ``executors`` are asked in the given order."""
        ...

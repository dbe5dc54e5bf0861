"""Checks of registered rules: names of operations, names of tables, types of rules.

A rule for an operation that does not exist, or in a table without a reader, would silently never
apply.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tj_core.contract.executors import Claim, Executor
from tj_core.contract.runs_as import RUNS_AS
from tj_core.contract.starts import STARTS
from tj_core.errors import PluginError, TjWarning, did_you_mean
from tj_core.ir.symbol import Symbol
from tj_core.passes.fuse.overwriting import OVERWRITES
from tj_core.passes.fuse.refusals import REFUSES

if TYPE_CHECKING:
    from tj_core.contract.rules import RuleTable
    from tj_core.text.language import Language

__all__ = ["Names", "check_claims", "check_rules", "readers"]

OWN: Mapping[str, Any] = dict.fromkeys(
    ("context", "expand", OVERWRITES, REFUSES, RUNS_AS, STARTS), Callable
)
"""The tables that the core reads, with the type of their rules."""


def readers(tables: Iterable[RuleTable[Any]]) -> dict[str, Any]:
    """The tables that the core or a plugin reads, with the type of their rules."""
    return {**OWN, **{t.name: t.rule_type for t in tables if t.rule_type is not None}}


def check_rules(whose: str, table: RuleTable[Any], known: Mapping[str, Any], names: Names) -> None:
    """Check the name of a ``table``, the types of its rules, and its keys.

    A table without a reader is accepted if its name resembles no other: the plugin that reads it
    may not be installed.

    :raises PluginError: with the table's owner, ``whose``.
    """
    if table.name == "claim":
        raise PluginError(
            f"{whose}: a table of claims is an executor's", hint="Executor(name, table)"
        )
    rule_type = known.get(table.name)
    if rule_type is None:
        if meant := did_you_mean(table.name, known):
            raise PluginError(f"{whose}: nobody reads rule table {table.name!r}.{meant}")
        return
    for rule in table:
        if not isinstance(rule.value, rule_type):
            raise PluginError(
                f"{whose}: the rule for {rule.key!r} in table {table.name!r} is a "
                f"{type(rule.value).__name__}, not a {_called(rule_type)}"
            )
    # A table with a type is its reader's: some of its keys may belong to other versions.
    if table.name != "context" and table.rule_type is None:
        names.check(f"{whose}, table {table.name!r}", table)


def check_claims(executor: Executor, names: Names) -> None:
    """Check the types of claims and decompositions, and their keys.

    :raises PluginError: naming the executor.
    """
    for rule in executor.claims:
        if not isinstance(rule.value, Claim):
            raise PluginError(
                f"{executor.owner}: its entry for {rule.key!r} is a "
                f"{type(rule.value).__name__}, not a Claim",
                hint="claims.set(symbol, Claim(implementation, check))",
            )
    names.check(executor.owner, executor.claims)
    names.check_spelling(executor.owner, executor.claims)
    for rule in executor.decompositions or ():
        if not callable(rule.value):
            raise PluginError(
                f"{executor.owner}: its decomposition of {rule.key!r} is a "
                f"{type(rule.value).__name__}, not a function"
            )
    if executor.decompositions is not None:
        names.check(f"{executor.owner}, decompositions", executor.decompositions)


class Names:
    """The check of names of operations against a session's dialects.

    An unknown operation may exist in another version of its library, so that it gives a warning;
    ``strict`` makes it an error.
    """

    def __init__(self, language: Language, strict: bool) -> None:
        self.language = language
        self.strict = strict

    def check(self, whose: str, table: RuleTable[Any]) -> None:
        """Check the keys of ``table``.

        :raises PluginError: for a key that cannot be the name of an operation.
        """
        for rule in table:
            if rule.key != "*":
                self.check_key(whose, rule.key)

    def check_key(self, whose: str, key: str) -> None:
        """Check one key, which may begin with the name of a tensor subclass; see `check`."""
        key = self.without_subclass(key)
        namespace, _, name = key.partition(".")
        if not namespace.isidentifier() or not name:
            raise PluginError(
                f"{whose}: {key!r} names no operation.{self.meant_without_namespace(key)}",
                hint="keys are 'namespace.name', 'namespace.*' and '*'",
            )
        if namespace not in self.language.names() and not _is_package(namespace):
            meant = did_you_mean(namespace, self.language.names())
            raise PluginError(f"{whose}: there is no namespace {namespace!r} for {key!r}.{meant}")
        known = self.language.known_instead(Symbol.parse(key)) if name != "*" else ()
        if known and key not in known:  # a name in `known` may be an attribute, not a callable
            self.unknown(f"{whose}: there is no operation {key!r}.{_meant(key, known)}")

    def check_spelling(self, whose: str, table: RuleTable[Any]) -> None:
        """Check for keys whose operation has another name in programs."""
        for rule in table:
            if not rule.key.endswith("*"):
                found = self.language.spelled(Symbol.parse(self.without_subclass(rule.key)))
                if found is not None:
                    said = f"in programs {rule.key!r} is called {found!r}: claim that name"
                    self.unknown(f"{whose}: {said}")

    def without_subclass(self, key: str) -> str:
        """The operation in ``key``, without the name of a tensor subclass before it."""
        kind, _, operation = key.partition(".")
        namespace, _, name = operation.partition(".")
        if kind in self.language.names() or namespace not in self.language.names() or not name:
            return key
        return operation

    def meant_without_namespace(self, key: str) -> str:
        """A suggestion of ``key`` with a namespace, or an empty text."""
        full = [f"{n}.{key}" for n in sorted(self.language.names()) if self.language.has(n, key)]
        return f" Did you mean {full[-1]!r}?" if full else ""

    def unknown(self, message: str) -> None:
        """Warn that a rule never applies; raise in strict mode."""
        if self.strict:
            raise PluginError(message)
        warnings.warn(TjWarning(f"tj: {message}"), stacklevel=2)


def _meant(key: str, known: Collection[str]) -> str:
    """``did_you_mean`` for the part of ``key`` that is as long as the names in ``known``."""
    depth = len(next(iter(known)).split("."))
    return did_you_mean(".".join(key.split(".")[:depth]), known)


def _is_package(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _called(rule_type: Any) -> str:
    return "function" if rule_type is Callable else str(rule_type.__name__)

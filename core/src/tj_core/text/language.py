"""The spelling of symbols, constants and contexts in Python, and its evaluation."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tj_core.errors import RuleMissingError, did_you_mean
from tj_core.ir.symbol import PLAIN_CONTEXT, Context, Symbol
from tj_core.text.parser import parse_trace
from tj_core.text.printer import print_trace
from tj_core.text.roots import roots

if TYPE_CHECKING:
    from tj_core.contract.dialects import ContextSpeller, Dialect
    from tj_core.contract.rules import RuleTable
    from tj_core.ir.proxy import Proxy
    from tj_core.ir.runtime import RuntimeValues
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["EMPTY_LANGUAGE", "Language"]


class Language:
    """The dialects of a session, and the spelling of its context keys.

    A namespace without a dialect is an importable package: its symbols print under their dotted
    names and evaluate to what those names import. ``runs_as`` is the rule table of that name.
    """

    __slots__ = ("_contexts", "_dialects", "_globals", "_runs_as")

    def __init__(
        self,
        dialects: Iterable[Dialect] = (),
        contexts: Mapping[str, ContextSpeller] | None = None,
        runs_as: RuleTable[Any] | None = None,
    ) -> None:
        self._dialects = {d.namespace: d for d in dialects}
        self._contexts = dict(contexts or {})
        self._runs_as = runs_as
        self._globals: dict[str, Any] = {}

    def print(self, trace: Trace, *, sources: bool = True, bodies: bool = True) -> str:
        """``trace`` as Python text, deterministic."""
        return print_trace(trace, sources=sources, bodies=bodies)

    def parse(self, text: str, constants: Mapping[str, Any]) -> Trace:
        """The trace that prints as ``text``.

        :raises ParseError: if ``text`` is not the print of a trace.
        """
        return parse_trace(text, self, constants)

    def prelude(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        """The first lines of programs that use ``namespaces``: imports, then assignments."""
        lines: set[str] = set()
        for namespace in namespaces:
            dialect = self._dialects.get(namespace)
            lines.update(dialect.prelude if dialect else (f"import {namespace}",))
        return tuple(sorted(lines, key=lambda line: (" = " in line, line)))

    def names(self) -> set[str]:
        """The global names that printed programs import for their dialects, reserved for them."""
        return set(self._dialects)

    def resolve(self, symbol: Symbol) -> Callable[..., Any]:
        """The callable behind ``symbol``.

        :raises RuleMissingError: if the namespace is unknown or has no such name.
        """
        dialect = self._dialects.get(symbol.namespace)
        try:
            return dialect.resolve(symbol) if dialect else _imported(symbol.qualname)
        except LookupError as error:
            raise RuleMissingError(
                f"symbol {symbol.qualname!r} has no implementation."
                + did_you_mean(symbol.namespace, self._dialects),
                hint=f"dialects: {', '.join(sorted(self._dialects)) or 'none'}; "
                "a plugin adds one through tj_dialects",
            ) from error

    def has(self, namespace: str, name: str) -> bool:
        """Test if ``namespace`` has ``name``; False for a dialect that cannot list its names."""
        dialect = self._dialects.get(namespace)
        return dialect is not None and dialect.known is not None and _resolves(dialect, name)

    def known_instead(self, symbol: Symbol) -> Collection[str]:
        """The existing names that an unknown ``symbol`` may be meant as; none if it may be right.

        A variant exists if its operation does.
        """
        while symbol.variant:
            symbol = symbol.base
        dialect = self._dialects.get(symbol.namespace)
        if dialect is None or dialect.known is None or _resolves(dialect, symbol.path):
            return ()
        return dialect.known(symbol)

    def spelled(self, symbol: Symbol) -> str | None:
        """The qualified name of calls of ``symbol`` in programs; None if it does not differ."""
        dialect = self._dialects.get(symbol.namespace)
        return dialect.spelled(symbol) if dialect and dialect.spelled else None

    def entry(self, call: BoundSymbol) -> Callable[..., Any] | None:
        """An equivalent of the resolved function for the arguments of ``call``, or None.

        By a rule of ``runs_as``, or else a faster one of the dialect.
        """
        rule = self._runs_as.get(call.symbol) if self._runs_as is not None else None
        if rule is not None and (other := rule.value(call)) is not None:
            found: Callable[..., Any] = other
            return found
        dialect = self._dialects.get(call.symbol.namespace)
        return dialect.entry(call) if dialect and dialect.entry else None

    @property
    def runtime(self) -> tuple[RuntimeValues, ...]:
        """The dialects' functions on values at run time."""
        return tuple(d.values for d in self._dialects.values() if d.values is not None)

    def observe(self, value: Any) -> Proxy | None:
        """The metadata of a value at run time; None if no dialect knows the value."""
        found = (dialect.observe(value) for dialect in self.runtime)
        return next((p for p in found if p is not None), None)

    def fingerprint(self, symbols: Collection[Symbol]) -> str | None:
        """The dialects' fingerprints for ``symbols``, as one text; None if one is missing."""
        found = []
        for namespace in sorted({symbol.namespace for symbol in symbols}):
            dialect = self._dialects.get(namespace)
            say = dialect.fingerprint if dialect is not None else None
            said = say([s for s in symbols if s.namespace == namespace]) if say else None
            if said is None:
                return None
            found.append(f"{namespace}: {said}")
        return "\n".join(found)

    def checks_writes(self, call: BoundSymbol) -> bool:
        """Ask the dialects if ``call`` may raise because of earlier mutations of its arguments."""
        checks = (d.checks_writes for d in self._dialects.values())
        return any(check(call) for check in checks if check is not None)

    def evaluate(self, text: str) -> Any:
        """The value of an expression under the preludes of all dialects.

        A name that no prelude defines is imported as a package.
        """
        # At the first use: the imports in preludes take long.
        if not self._globals:
            for line in self.prelude(self._dialects):
                exec(line, self._globals)
        for root in roots(text):
            if root not in self._globals and root not in self._dialects:
                exec(f"import {root}", self._globals)
        return eval(text, self._globals)

    def enter(self, context: Context, outer: Context = PLAIN_CONTEXT) -> tuple[str, ...]:
        """The Python expressions of the context managers that lead from ``outer`` to ``context``.

        Outer first, in the order in which their keys were registered: a context manager may set
        another key as well, which a later one then corrects (`Resetting`).

        :raises RuleMissingError: if no dialect spells a key.
        """
        values = dict(context.items)
        wanted = dict.fromkeys(key for key, _ in context.beyond(outer).items)
        for key in tuple(wanted):
            wanted.update(dict.fromkeys(getattr(self._speller(key), "resets", ())))
        order = {key: i for i, key in enumerate(self._contexts)}
        keys = sorted((key for key in wanted if key in values), key=order.__getitem__)
        return tuple(self._speller(key)(values[key]) for key in keys)

    def _speller(self, key: str) -> ContextSpeller:
        speller = self._contexts.get(key)
        if speller is None:
            raise RuleMissingError(
                f"no plugin says how to enter context {key!r}." + did_you_mean(key, self._contexts),
                hint='register it in table "context", key "context.<name>"',
            )
        return speller


def _resolves(dialect: Dialect, name: str) -> bool:
    try:
        dialect.resolve(Symbol(dialect.namespace, name))
    except LookupError:
        return False
    return True


def _imported(qualname: str) -> Callable[..., Any]:
    """The callable under a dotted name: the longest importable module, then attributes.

    :raises LookupError: if there is none.
    """
    parts = qualname.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        try:
            for part in parts[cut:]:
                value = getattr(value, part)
        except AttributeError as error:
            raise LookupError(qualname) from error
        if callable(value):
            return value  # type: ignore[no-any-return]
        break
    raise LookupError(qualname)


EMPTY_LANGUAGE = Language()

"""Rule tables: the one way for a plugin to tell a transformation what a symbol means.

A table maps a key to a rule. The key is a symbol's qualified name (``torch.add``), a namespace
(``torch.*``) for a rule that serves every symbol in it, or ``*`` for one that serves all symbols;
the most specific key wins. Tables are values: ``a | b`` has the rules of both. For a key in both,
the rule with the higher priority wins; two different rules of equal priority are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tj_core.errors import PluginError, RuleConflictError, RuleMissingError, did_you_mean

if TYPE_CHECKING:
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.trace import BoundSymbol

__all__ = ["Rule", "RuleTable"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """One entry: the rule itself, the registering plugin, and the rule's place in its source."""

    key: str
    value: T
    plugin: str = ""
    priority: int = 0
    origin: str = ""


class RuleTable(Generic[T]):
    """A named mapping from symbols to rules, open until it is frozen.

    The plugin that reads the tables of a name registers one with a ``rule_type``, a class or
    `collections.abc.Callable`: the type of the rules in all tables of this name.

    ::

        grad = RuleTable("grad")

        @grad.register("torch.sin")
        def sin_grad(call, cotangent): ...
    """

    __slots__ = ("_frozen", "_rules", "name", "rule_type")

    def __init__(
        self,
        name: str,
        rules: dict[str, Rule[T]] | None = None,
        *,
        rule_type: Any = None,
    ) -> None:
        self.name = name
        self.rule_type = rule_type
        self._rules: dict[str, Rule[T]] = dict(rules or {})
        self._frozen = False

    def register(self, *keys: str) -> Callable[[T], T]:
        """Return a decorator that registers its argument for ``keys``.

        :raises RuleConflictError: if the table has a rule for one of the keys already.
        :raises PluginError: if a key is no text.
        """

        def add(value: T) -> T:
            for key in keys:
                self.set(key, value)
            return value

        return add

    def set(self, key: str, value: T) -> None:
        """Register ``value`` for ``key``; the plain form of `register`."""
        if self._frozen:
            raise RuleConflictError(
                f"table {self.name!r} is frozen: its session has started",
                hint="register rules in the plugin's tj_rule_tables hook",
            )
        if not isinstance(key, str):
            kind = type(key).__name__
            raise PluginError(
                f"table {self.name!r}: a key is the name of an operation, not a {kind}",
                hint="table.set('torch.exp', rule), and not table.set(torch.exp, rule)",
            )
        if key in self._rules:
            raise RuleConflictError(f"table {self.name!r} has a rule for {key!r} already")
        self._rules[key] = Rule(key, value, origin=_origin(value))

    def stamped(self, plugin: str, priority: int) -> RuleTable[T]:
        """The same rules, owned by ``plugin`` with ``priority`` (higher wins)."""
        return RuleTable(
            self.name,
            {k: replace(r, plugin=plugin, priority=priority) for k, r in self._rules.items()},
            rule_type=self.rule_type,
        )

    def frozen(self) -> RuleTable[T]:
        """A table with the same rules that accepts no more."""
        table = RuleTable(self.name, self._rules, rule_type=self.rule_type)
        table._frozen = True
        return table

    def __or__(self, other: RuleTable[T]) -> RuleTable[T]:
        if other.name != self.name:
            raise RuleConflictError(f"cannot add table {other.name!r} to table {self.name!r}")
        merged = dict(self._rules)
        for key, rule in other._rules.items():
            mine = merged.setdefault(key, rule)
            if mine is rule:
                continue
            if mine.priority == rule.priority:
                raise RuleConflictError(
                    f"table {self.name!r} has two rules for {key!r}: "
                    f"from {mine.plugin or 'core'} ({mine.origin}) "
                    f"and from {rule.plugin or 'core'} ({rule.origin})",
                    hint="order the two plugins in [tool.tj] plugins, or disable one",
                )
            if rule.priority > mine.priority:
                merged[key] = rule
        return RuleTable(self.name, merged, rule_type=self.rule_type or other.rule_type)

    def get(self, symbol: Symbol) -> Rule[T] | None:
        """The rule for ``symbol``: under its own name, its namespace, or ``*``; else None."""
        rules = self._rules
        return rules.get(symbol.qualname) or rules.get(symbol.namespace + ".*") or rules.get("*")

    def of(self, call: BoundSymbol) -> Rule[T] | None:
        """The rule for the symbol of ``call``, or None.

        For a call on a tensor subclass, only two keys count: the operation on this subclass
        (``TwoTensor.torch.mul``), and ``*``. All other rules are for plain tensors.
        """
        if not call.on_subclass:
            return self.get(call.symbol)
        return self.of_subclass(call) or self._rules.get("*")

    def of_subclass(self, call: BoundSymbol) -> Rule[T] | None:
        """The rule for the operation of ``call`` on the first tensor subclass that has one."""
        keys = (f"{kind}.{call.symbol.qualname}" for kind in call.kinds)
        return next((self._rules[key] for key in keys if key in self._rules), None)

    def require(self, call: BoundSymbol) -> Rule[T]:
        """The rule for ``call``'s symbol.

        :raises RuleMissingError: naming the symbol, the table, the plugins that have rules in it,
            the user's line and how to register one.
        """
        rule = self.get(call.symbol)
        if rule is not None:
            return rule
        name = call.symbol.qualname
        owners = sorted({r.plugin or "core" for r in self._rules.values()})
        raise RuleMissingError(
            f"no rule for {name!r} in table {self.name!r} "
            f"(plugins with rules in it: {', '.join(owners) or 'none'})."
            + did_you_mean(name, self._rules),
            source=call.source,
            hint=f'register one with table.register("{name}") in a plugin\'s tj_rule_tables hook',
        )

    def __contains__(self, key: str) -> bool:
        return key in self._rules

    def __iter__(self) -> Iterator[Rule[T]]:
        return iter(self._rules.values())

    def __len__(self) -> int:
        return len(self._rules)

    def __repr__(self) -> str:
        return f"RuleTable({self.name!r}, {len(self)} rules)"


def _origin(value: object) -> str:
    """``file:line`` of a function, else the type's name."""
    code = getattr(value, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else type(value).__name__

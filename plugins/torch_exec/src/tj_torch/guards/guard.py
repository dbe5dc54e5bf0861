"""Guards that tj makes itself: conditions as Python text, which one generated function checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.extend import define

__all__ = ["Guard", "Guards"]


@dataclass(frozen=True, slots=True)
class Guard:
    """Condition of an entry: ``term`` is Python over a scope, ``text`` is printed unless empty."""

    term: str
    text: str


_CHECK = """
def check({parameters}):
    try:
        {steps}
    except AttributeError:
        return False
    return {last}
"""
"""Template of the check; a deleted member counts as changed."""

_FAILED = """
def failed({parameters}):
    found = 0
    try:
{steps}
    except AttributeError:
        return found
    return None
"""

_STEP = """\
        if not ({term}):
            return found
        found += 1"""


class Guards:
    """Guards of one entry, each once, in the order in which they are checked.

    Their terms use names of ``scope``, and the ``parameters`` of the check.
    """

    def __init__(self, parameters: Sequence[str] = ()) -> None:
        self.parameters = ", ".join(parameters)
        self.scope: dict[str, Any] = {}
        self._guards: dict[str, Guard] = {}
        self._names: dict[tuple[str, int], str] = {}

    def bind(self, wish: str, value: Any) -> str:
        """Name of ``value`` in the scope; it begins with ``wish``."""
        name = self._names.get((wish, id(value)))
        if name is None:
            name = self._names[wish, id(value)] = f"{wish}{len(self.scope)}"
            self.scope[name] = value
        return name

    def add(self, *terms: str, text: str = "") -> None:
        """Add a guard per term; the last one has ``text``, which describes all of them."""
        for i, term in enumerate(terms, 1):
            self._guards.setdefault(term, Guard(term, text if i == len(terms) else ""))

    def terms(self) -> list[str]:
        """Conditions as Python text."""
        return list(self._guards)

    def texts(self) -> tuple[str, ...]:
        """Guards to be printed."""
        return tuple(guard.text for guard in self._guards.values() if guard.text)

    def check(self, then: Callable[..., bool] | None = None) -> Callable[..., bool] | None:
        """Function that checks the guards and ``then`` on its arguments; None without guards.

        It does as little as possible, since each call runs it: terms are joined by ``and``.
        """
        if not self._guards:
            return then
        terms = " and ".join(self.terms())
        last = "True" if then is None else f"then({self.parameters})"
        steps = f"if not ({terms}): return False"
        source = _CHECK.format(parameters=self.parameters, steps=steps, last=last)
        return define(source, "check", {**self.scope, "then": then}, "tj guards")

    def failed(self, *values: Any) -> str | None:
        """Text of the first guard that does not hold, else its term; None if all hold."""
        steps = "\n".join(_STEP.format(term=term) for term in self._guards) or "        pass"
        source = _FAILED.format(parameters=self.parameters, steps=steps)
        found = define(source, "failed", dict(self.scope), "tj guards")(*values)
        if found is None:
            return None
        guard: Guard = list(self._guards.values())[found]
        return guard.text or guard.term

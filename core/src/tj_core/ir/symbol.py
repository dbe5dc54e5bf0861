"""Symbols, constants and contexts: what a call is made of, besides values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["PLAIN_CONTEXT", "Constant", "Context", "Symbol"]

FUNCTIONAL = ".functional"
"""Ends the name of an operation whose writes are results: new values, then what it returns."""

INVERSE = ".inverse"
"""Ends the name of a view's inverse: what is viewed, from a new value of the view."""

EDITED = ".rewritten"
"""Ends the name of a symbol whose call has an edited body."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of an operation; what it means is in tables. The world of symbols is open.

    ``namespace`` is an identifier, without dots; ``name`` may have them.
    """

    namespace: str
    name: str

    @property
    def qualname(self) -> str:
        """``namespace.name``, as printed."""
        return f"{self.namespace}.{self.name}"

    @classmethod
    def parse(cls, qualname: str) -> Symbol:
        """The symbol printed as ``qualname``."""
        namespace, _, name = qualname.partition(".")
        return cls(namespace, name)

    @property
    def functional(self) -> bool:
        """Whether this is what an operation that writes is made into: nothing is written."""
        return self.name.endswith((FUNCTIONAL, INVERSE))

    @property
    def edited(self) -> bool:
        """Whether the call's body was edited: it means what its body says, and no rule knows it."""
        return self.name.endswith(EDITED)

    def as_edited(self) -> Symbol:
        """The symbol of a call of this one whose body was edited."""
        return self if self.edited else Symbol(self.namespace, self.name + EDITED)

    def __str__(self) -> str:
        return self.qualname


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant argument that Python's literals cannot spell; ``nan`` and ``inf`` are such.

    ``text``, a dotted name or a call, evaluates to it under the dialects' preludes
    (``torch.float32``, ``float("nan")``); where no text does, ``text`` is a name (``_function0``)
    and the value travels beside the program.
    """

    text: str
    value: Any = field(hash=False)
    named: bool = True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or self.text != other.text:
            return False
        return self.named or self.value is other.value


@dataclass(frozen=True, slots=True)
class Context:
    """The dynamic context of a call: grad mode, autocast, ..., as sorted pairs of key and value.

    A trace's context is the one its program was acquired in, and runs in; a call's is the one at
    that point of the program, and holds every key the trace's does. In a body, a call's context
    holds only what differs from that of the call the body belongs to.
    """

    items: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, **values: Any) -> Context:
        """The context with ``values``."""
        return cls(tuple(sorted(values.items())))

    def with_(self, key: str, value: Any) -> Context:
        """A context that differs in ``key``."""
        return Context(tuple(sorted({**dict(self.items), key: value}.items())))

    def over(self, outer: Context) -> Context:
        """This context where it says something, ``outer`` elsewhere."""
        if not outer.items or self == outer:
            return self
        return Context(tuple(sorted({**dict(outer.items), **dict(self.items)}.items())))

    def beyond(self, outer: Context) -> Context:
        """The part of this context in which it differs from ``outer``."""
        known = dict(outer.items)
        return Context(tuple(i for i in self.items if i[0] not in known or known[i[0]] != i[1]))

    def get(self, key: str) -> Any:
        """The value of ``key``, or None."""
        return dict(self.items).get(key)


PLAIN_CONTEXT = Context()

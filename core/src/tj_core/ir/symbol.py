"""Symbols, constants and contexts: what a call is made of, besides values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "AUGMENTED",
    "BACKWARD",
    "EDITED",
    "FORWARD",
    "FUNCTIONAL",
    "INVERSE",
    "PLAIN_CONTEXT",
    "REPLAYED",
    "Constant",
    "Context",
    "Symbol",
]

FUNCTIONAL = "functional"
"""The variant of an operation whose writes are results: new values, then what it returns."""

INVERSE = "inverse"
"""The variant of a view that computes what is viewed, from a new value of the view."""

AUGMENTED = "augmented"
"""The variant of an operation that returns more than it does, for its backward."""

FORWARD = "forward"
"""The variant of an operation that an executor computes with a backward of its own."""

BACKWARD = "backward"
"""The variant of an operation that computes its gradients."""

REPLAYED = "replayed"
"""The variant of a random operation that draws from states of generators that it is given."""

EDITED = "rewritten"
"""The variant of an operation whose call has an edited body."""

VARIANTS = frozenset({FUNCTIONAL, INVERSE, AUGMENTED, FORWARD, BACKWARD, REPLAYED, EDITED})
"""The variants that are read off printed names."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of an operation; what it means is in tables. The world of symbols is open.

    ``namespace`` is an identifier, without dots; ``name`` may have them. ``variant`` says what the
    operation of that name was made into, which may be a variant itself. Two symbols are equal if
    they print alike, as ``namespace.name.variant``: `qualname`.
    """

    namespace: str = field(compare=False)
    name: str = field(compare=False)
    variant: str = field(default="", compare=False)
    qualname: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "qualname", f"{self.namespace}.{self.path}")

    @classmethod
    def parse(cls, qualname: str) -> Symbol:
        """The symbol printed as ``qualname``."""
        namespace, _, path = qualname.partition(".")
        name, _, variant = path.rpartition(".")
        return (
            cls(namespace, name, variant) if name and variant in VARIANTS else cls(namespace, path)
        )

    @property
    def path(self) -> str:
        """``name.variant``: what stands after the namespace."""
        return f"{self.name}.{self.variant}" if self.variant else self.name

    @property
    def base(self) -> Symbol:
        """The operation that this is a variant of; itself, if it is none."""
        return Symbol.parse(f"{self.namespace}.{self.name}") if self.variant else self

    @property
    def functional(self) -> bool:
        """Whether this is what an operation that writes is made into: nothing is written."""
        return self.variant in (FUNCTIONAL, INVERSE)

    @property
    def edited(self) -> bool:
        """Whether the call's body was edited: it means what its body says, and no rule knows it."""
        return self.variant == EDITED

    def as_variant(self, variant: str) -> Symbol:
        """The symbol of what this operation is made into."""
        return Symbol(self.namespace, self.path, variant)

    def as_edited(self) -> Symbol:
        """The symbol of a call of this one whose body was edited."""
        return self if self.edited else self.as_variant(EDITED)

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

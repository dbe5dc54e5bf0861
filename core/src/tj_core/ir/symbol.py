"""Symbols, constants and contexts: the parts of a call besides values."""

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
"""The variant of a mutating operation that returns the new values, then its own results."""

INVERSE = "inverse"
"""The variant of a view operation that computes the base from a new value of the view."""

AUGMENTED = "augmented"
"""The variant of an operation with additional outputs for its backward."""

FORWARD = "forward"
"""The variant of an operation that an executor computes with a backward of its own."""

BACKWARD = "backward"
"""The variant of an operation that computes its gradients."""

REPLAYED = "replayed"
"""The variant of a random operation that takes the generators' states as arguments."""

EDITED = "rewritten"
"""The variant of an operation whose call has an edited body."""

VARIANTS = frozenset({FUNCTIONAL, INVERSE, AUGMENTED, FORWARD, BACKWARD, REPLAYED, EDITED})
"""The variants that are read off printed names."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """The name of an operation; rule tables hold its meaning. The set of symbols is open.

    ``namespace`` is an identifier, without dots; ``name`` may have dots. ``variant`` is the form
    that a transform has given the operation ``name``, which may be a variant itself. Two symbols
    are equal if they print alike, as ``namespace.name.variant``: `qualname`.
    """

    namespace: str
    name: str
    variant: str = ""
    qualname: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "qualname", f"{self.namespace}.{self.path}")

    # Not those that `dataclass` makes, which take twice as long: all rules are looked up by symbol.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.qualname == other.qualname

    def __hash__(self) -> int:
        return hash(self.qualname)

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
        """``name.variant``: the qualified name without the namespace."""
        return f"{self.name}.{self.variant}" if self.variant else self.name

    @property
    def base(self) -> Symbol:
        """The operation behind a variant; the symbol itself if it is no variant."""
        return Symbol.parse(f"{self.namespace}.{self.name}") if self.variant else self

    @property
    def functional(self) -> bool:
        """Test for the functional form of a mutating or viewing operation, which writes nothing."""
        return self.variant in (FUNCTIONAL, INVERSE)

    @property
    def edited(self) -> bool:
        """Test for a call with an edited body, which defines its meaning: no rule applies."""
        return self.variant == EDITED

    def as_variant(self, variant: str) -> Symbol:
        """The symbol of the ``variant`` of this operation."""
        return Symbol(self.namespace, self.path, variant)

    def as_edited(self) -> Symbol:
        """The symbol of a call of this operation with an edited body."""
        return self if self.edited else self.as_variant(EDITED)

    def __str__(self) -> str:
        return self.qualname


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant argument that Python's literals cannot spell; ``nan`` and ``inf`` are such.

    ``text``, a dotted name or a call, evaluates to ``value`` under the dialects' preludes
    (``torch.float32``, ``float("nan")``). With ``named=False`` no text does: ``text`` is a name
    (``_function0``) and the value travels beside the program.
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
        """The union of this context and ``outer``; this one's values win."""
        if not outer.items or self == outer:
            return self
        return Context(tuple(sorted({**dict(outer.items), **dict(self.items)}.items())))

    def beyond(self, outer: Context) -> Context:
        """The items of this context that are not in ``outer``, or have another value there."""
        known = dict(outer.items)
        return Context(tuple(i for i in self.items if i[0] not in known or known[i[0]] != i[1]))

    def get(self, key: str) -> Any:
        """The value of ``key``, or None."""
        return dict(self.items).get(key)


PLAIN_CONTEXT = Context()

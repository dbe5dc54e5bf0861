"""Serialise traces, and trees of traces, as JSON for another process.

Printed programs are for people, and slow to parse. Here every distinct value, call or body is one
row of a JSON document, after the rows that it refers to, so that repeated parts are written and
read once. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from tj_core.errors import ParseError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import (
    Device,
    Dim,
    DType,
    NumberProxy,
    OpaqueProxy,
    SubclassInfo,
    SymDim,
    TensorProxy,
)
from tj_core.ir.sizes import size_symbols
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Constant, Context, Symbol
from tj_core.ir.tags import TagSet
from tj_core.ir.trace import Body, BoundSymbol, Change, Notation, PassRecord, Subprogram, Trace
from tj_core.source import Source

if TYPE_CHECKING:
    from tj_core.ir.runtime import RuntimeValues

__all__ = ["NotPlainError", "decoded", "encoded"]


T = TypeVar("T", bound="tuple[Any, ...]")


class NotPlainError(Exception):
    """The tree has a value that cannot be serialised, such as an object of the program."""


_RECORDS: dict[type, tuple[str, ...]] = {
    TensorProxy: (
        "name",
        "shape",
        "strides",
        "dtype",
        "device",
        "requires_grad",
        "layout",
        "flags",
        "subclass",
        "tags",
    ),
    NumberProxy: ("name", "kind", "expr", "hint", "tags"),
    OpaqueProxy: ("name", "type", "tags"),
    SubclassInfo: ("type", "inner", "context"),
    DType: ("name", "bits", "kind"),
    Device: ("type", "index"),
    Symbol: ("namespace", "name", "variant"),
    Context: ("items",),
    Alias: ("output", "kind", "index", "identical"),
    Effects: ("mutates", "rebinds", "aliases", "ordered", "marks", "copies_back"),
    Source: ("file", "line", "text", "function", "module_path"),
    Body: ("inputs", "calls", "outputs", "updates"),
    Subprogram: ("program", "operands", "returns"),
    BoundSymbol: (
        "symbol",
        "args",
        "kwargs",
        "outputs",
        "effects",
        "body",
        "context",
        "tags",
        "source",
        "parent",
        "executor",
    ),
    Change: ("call", "plugin", "rule", "origin", "declined"),
    PassRecord: ("name", "plugin", "changes", "seconds"),
    Trace: ("inputs", "calls", "outputs", "name", "stage", "context", "tags", "history"),
}
"""The serialised fields of each class of records, in order."""

_CODES = {kind: kind.__name__ for kind in _RECORDS}
_READ: dict[type, Callable[[Any], Any]] = {k: attrgetter(*names) for k, names in _RECORDS.items()}
_KINDS = {code: kind for kind, code in _CODES.items()}
_ONE = frozenset(kind for kind, names in _RECORDS.items() if len(names) == 1)
_PLAIN = frozenset((str, int, type(None)))
_TRUTHS = {truth: ("b", int(truth)) for truth in (False, True)}


def encoded(
    value: Any,
    symbols: set[str] | None = None,
    values: Sequence[RuntimeValues] = (),
    *,
    history: bool = True,
) -> str:
    """``value``, a tree of traces and their parts, as text; equal ones give equal text.

    Trees are tuples, lists, dicts with strings as keys, and slices; other leaves are numbers,
    strings and None. The set ``symbols`` receives the names of symbols in sizes; with None,
    symbolic sizes are refused. ``values`` serialise constants without a spelling in Python.
    Without ``history``, the text leaves out the passes behind traces, and their times.

    :raises NotPlainError: for another kind of leaf, or a constant that only this process has.
    """
    writer = _Writer(symbols, values, history)
    root = writer.tree(value)
    # Trees have no cycles: rows refer to earlier ones.
    return json.dumps([writer.rows, root], separators=(",", ":"), check_circular=False)


def decoded(text: str, language: Notation, dim: Callable[[str], Dim] = SymDim) -> Any:
    """The tree that `encoded` wrote as ``text``; its traces get ``language``.

    ``dim`` makes a symbolic size from an expression.

    :raises ParseError: if ``text`` is not the result of `encoded`.
    """
    try:
        rows, root = json.loads(text)
        return _Reader(rows, language, dim).tree(root)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ParseError(f"no encoded trace: {type(error).__name__}: {error}") from error


class _Writer:
    """Writes rows, each distinct one once. A reference to row ``i`` is ``[i]``."""

    def __init__(
        self, symbols: set[str] | None, values: Sequence[RuntimeValues], history: bool
    ) -> None:
        self.symbols = symbols
        self.values = values
        self.history = history
        self.rows: list[Any] = []
        self.places: dict[Any, int] = {}
        self.known: dict[int, tuple[Any, ...]] = {}
        self.alive: list[Any] = []  # keeps the objects behind the ids in `known` from being freed

    def tree(self, value: Any) -> Any:
        """The JSON form of ``value`` in a row: a plain value, a tagged list or a reference."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is bool:
            return _TRUTHS[value]
        if (found := self.known.get(id(value))) is not None:
            return found
        if kind is tuple:
            return self.kept(value, ("t", *self.trees(value)))
        if kind in _RECORDS:
            return self.kept(value, self.record(kind, value))
        if kind is TagSet:
            tags = [(key, self.tree(item)) for key, item in value.items()]
            return self.kept(value, self.row(("g", *tags)))
        return self.other(kind, value)

    def trees(self, values: Iterable[Any]) -> list[Any]:
        """The JSON forms of ``values``."""
        # No call for a plain value: a program of a thousand calls has a hundred thousand.
        tree, known = self.tree, self.known
        return [
            value if type(value) in _PLAIN else (known.get(id(value)) or tree(value))
            for value in values
        ]

    def kept(self, value: Any, found: T) -> T:
        """Remember the form ``found`` for later occurrences of the object ``value``."""
        self.known[id(value)] = found
        self.alive.append(value)
        return found

    def record(self, kind: type, value: Any) -> tuple[int]:
        """A reference to the row of ``value``."""
        read = _READ[kind](value)
        if kind is Trace and not self.history:
            read = (*read[:-1], ())
        if kind is SubclassInfo and value.state is not None:
            raise NotPlainError(f"a tensor of {value.type}")
        fields = (self.tree(read),) if kind in _ONE else self.trees(read)
        return self.row((_CODES[kind], *fields))

    def row(self, row: tuple[Any, ...]) -> tuple[int]:
        place = self.places.setdefault(row, len(self.rows))
        if place == len(self.rows):
            self.rows.append(row)
        return (place,)

    def other(self, kind: type, value: Any) -> Any:
        """The JSON form of a container, or of a leaf that is neither text nor a whole number.

        Numbers of other types have a tag, since ``1``, ``1.0`` and ``True`` are equal as keys.
        """
        # As text, which reads back to the same number: JSON has neither NaN nor complex numbers.
        if kind is float or kind is complex:
            return (kind.__name__, repr(value))
        if kind is list:
            return ("l", *self.trees(value))
        if kind is dict and all(type(key) is str for key in value):
            return ("d", *[(key, self.tree(item)) for key, item in value.items()])
        if kind is slice:
            return ("s", *self.trees((value.start, value.stop, value.step)))
        if kind is Constant:
            return self.constant(value)
        if kind is SymDim and self.symbols is not None:
            self.symbols.update(size_symbols(value.name))
            return self.row(("y", value.name))
        if kind is Stage:
            return ("n", value.name)
        if value is ...:
            return ("e",)
        raise NotPlainError(kind.__name__)

    def constant(self, constant: Constant) -> tuple[int]:
        """A reference to the row of ``constant``."""
        if constant.named:
            return self.row(("k", constant.text))
        text = self.text(constant)
        if text is None:
            raise NotPlainError(f"constant {constant.text}")
        return self.row(("c", constant.text, text))

    def text(self, constant: Constant) -> str | None:
        """The text of ``constant`` from the first dialect that can serialise it, or None."""
        said = (v.text(constant) for v in self.values if v.text is not None)
        return next((text for text in said if text is not None), None)


class _Reader:
    """Reads rows when they are first referred to."""

    def __init__(self, rows: list[Any], language: Notation, dim: Callable[[str], Dim]) -> None:
        self.rows = rows
        self.language = language
        self.dim = dim
        self.made: list[Any] = [None] * len(rows)

    def tree(self, value: Any) -> Any:
        """The value behind the JSON form ``value``."""
        if type(value) is not list:
            return value
        first = value[0]
        if type(first) is int:
            made = self.made[first]
            if made is None:
                made = self.made[first] = self.row(self.rows[first])
            return made
        if first == "t":
            return tuple([self.tree(item) for item in value[1:]])
        return _OTHERS[first](self, value)

    def row(self, row: list[Any]) -> Any:
        kind = _KINDS.get(row[0])
        if kind is None:
            return _OTHERS[row[0]](self, row)
        fields = [self.tree(item) for item in row[1:]]
        names = _RECORDS[kind]
        if len(fields) != len(names):
            raise ValueError(f"a {kind.__name__} of {len(fields)} fields")
        if kind is BoundSymbol:  # bypass __init__: there are thousands of calls
            made = object.__new__(BoundSymbol)
            made.__dict__.update(zip(names, fields, strict=True))
            return made
        extra = {"language": self.language} if kind is Trace else {}
        return kind(**dict(zip(names, fields, strict=True)), **extra)

    def constant(self, row: list[Any]) -> Constant:
        try:
            return Constant(row[1], self.language.evaluate(row[1]))
        except Exception as error:
            raise ParseError(f"{row[1]!r} is no constant here") from error

    def value(self, row: list[Any]) -> Constant:
        made = next((v.of_text for v in self.language.runtime if v.of_text is not None), None)
        if made is None:
            raise ParseError(f"no dialect can restore constant {row[1]!r}")
        return Constant(row[1], made(row[2]), named=False)


_OTHERS: dict[str, Callable[[_Reader, list[Any]], Any]] = {
    "b": lambda _, row: bool(row[1]),
    "float": lambda _, row: float(row[1]),
    "complex": lambda _, row: complex(row[1]),
    "l": lambda reader, row: [reader.tree(item) for item in row[1:]],
    "d": lambda reader, row: {key: reader.tree(item) for key, item in row[1:]},
    "s": lambda reader, row: slice(*[reader.tree(item) for item in row[1:]]),
    "g": lambda reader, row: TagSet({key: reader.tree(item) for key, item in row[1:]}),
    "k": _Reader.constant,
    "c": _Reader.value,
    "y": lambda reader, row: reader.dim(row[1]),
    "n": lambda _, row: Stage[row[1]],
    "e": lambda _, row: ...,
}
"""Readers of rows and leaves that are no records, by their first item."""

"""Checks of the fields of records, when a plugin makes a record, not at the record's first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tj_core.errors import PluginError, close

__all__ = ["FLAG", "FUNCTION", "NAME", "NUMBER", "OPTIONAL_FUNCTION", "Kind", "check_fields", "of"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values, in words and as a predicate; ``names`` are valid values, to suggest."""

    words: str
    fits: Callable[[Any], bool]
    names: tuple[str, ...] = ()


FUNCTION = Kind("a function", callable)
OPTIONAL_FUNCTION = Kind("a function or None", lambda value: value is None or callable(value))
FLAG = Kind("True or False", lambda value: isinstance(value, bool))
# Not `isinstance`: in Python, True is an int.
NUMBER = Kind("an integer", lambda value: type(value) is int)
NAME = Kind("a name", lambda value: isinstance(value, str) and bool(value))


def of(cls: type[Any], *, optional: bool = False) -> Kind:
    """The kind of the instances of ``cls``, and of None if ``optional``."""
    names = tuple(f"{cls.__name__}.{n}" for n in cls.__members__) if issubclass(cls, Enum) else ()
    return Kind(
        f"a {cls.__name__}" + (" or None" if optional else ""),
        lambda value: isinstance(value, cls) or (optional and value is None),
        names,
    )


def check_fields(record: object, **kinds: Kind) -> None:
    """Check that the fields of ``record`` hold values of these ``kinds``.

    :raises PluginError: naming the record, the field, the kind and a suggestion.
    """
    for field, kind in kinds.items():
        value = getattr(record, field)
        if not kind.fits(value):
            named = getattr(record, "name", None)
            what = type(record).__name__ + (f" {named!r}" if isinstance(named, str) else "")
            shown = repr(value) if isinstance(value, str | int) else f"a {type(value).__name__}"
            raise PluginError(
                f"{what}: {field} must be {kind.words}, not {shown}.{_meant(value, kind)}"
            )


def _meant(value: object, kind: Kind) -> str:
    if not isinstance(value, str):
        return ""
    by_last = {name.rpartition(".")[2]: name for name in kind.names}
    found = close(value.upper(), by_last)
    return f" Did you mean {by_last[found]}?" if found is not None else ""

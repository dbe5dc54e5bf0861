"""Typed options: a frozen dataclass declares the keys, layers of values fill it.

The core's own keys and every plugin's table go through here, so that both have the same types, the
same errors and the same record of origins. `tj_core.host.config` defines the layers and reads
their values.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from tj_core.errors import ConfigError, did_you_mean

__all__ = [
    "DEFAULT",
    "Layer",
    "Resolved",
    "Value",
    "describe",
    "env_layer",
    "layer",
    "resolve",
    "schema",
]

T = TypeVar("T")

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})
_UNIONS = (Union, types.UnionType)


@dataclass(frozen=True, slots=True)
class Value(Generic[T]):
    """A value and its origin: ``"env TJ_CHECK"``, ``"default"``, ``"call"``."""

    value: T
    origin: str


DEFAULT = "default"
"""The origin of a value that no source has set."""

Layer = Mapping[str, Value[Any]]
"""The values of one source, by key; layers are passed strongest first."""


@dataclass(frozen=True, slots=True)
class Resolved(Generic[T]):
    """A filled options object, and the origin of each of its values."""

    options: T
    origins: Mapping[str, str]

    def __getitem__(self, key: str) -> Value[Any]:
        return Value(getattr(self.options, key), self.origins[key])

    def items(self) -> Iterator[tuple[str, Value[Any]]]:
        """Every key with its value and origin, in the order of declaration."""
        return ((key, self[key]) for key in self.origins)


def schema(cls: type[Any]) -> dict[str, Any]:
    """The keys that ``cls`` declares, each with its type.

    :raises TypeError: if ``cls`` is not a frozen dataclass, or a type is not one of bool, int,
        float, str, a list or tuple of these, a Literal, or a union of these and None.
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"options must be a frozen dataclass, not {cls!r}")
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"the options dataclass {cls.__qualname__} must be frozen")
    hints = typing.get_type_hints(cls)
    kinds = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}
    for kind in kinds.values():
        describe(kind)
    return kinds


def layer(values: Mapping[str, object], origin: str) -> dict[str, Value[Any]]:
    """A layer with the origin ``origin`` for all values that are not a `Value` already."""
    return {k: v if isinstance(v, Value) else Value(v, origin) for k, v in values.items()}


def env_layer(cls: type[Any], prefix: str, environ: Mapping[str, str]) -> dict[str, Value[Any]]:
    """The values of ``cls``'s keys in the environment, each under ``prefix`` + KEY.

    :raises ConfigError: if a text is not a value of the key's type.
    """
    found = {}
    for key, kind in schema(cls).items():
        variable = prefix + key.upper()
        if variable in environ:
            found[key] = Value(_from_env(variable, environ[variable], kind), f"env {variable}")
    return found


def resolve(cls: type[T], layers: Sequence[Layer]) -> Resolved[T]:
    """Fill ``cls`` from ``layers``, the strongest first, else from its own defaults.

    Values of weaker layers are checked too: a wrong one is a mistake even if it is overridden.

    :raises ConfigError: naming origin and key, for an unknown key, a wrong type, a missing value,
        or a value that the class itself refuses.
    """
    kinds = schema(cls)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(kinds, DEFAULT)
    for each in reversed(layers):
        for key, value in each.items():
            values[key] = _checked(key, value, kinds)
            origins[key] = value.origin
    return Resolved(_build(cls, values, origins), origins)


def describe(kind: Any) -> str:
    """A type in words, for messages: ``"a list of strings"``.

    :raises TypeError: if options cannot have this type.
    """
    if kind in _SCALARS:
        return _SCALARS[kind].noun
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if get_origin(kind) in _UNIONS:
        return " or ".join(describe(k) for k in get_args(kind))
    if get_origin(kind) in (list, tuple):
        return "a list of " + " and ".join(_plural(k) for k in _items(kind))
    raise TypeError(f"options cannot have the type {kind!r}")


# ------------------------------------------------------------------------------- building


def _build(cls: type[T], values: dict[str, Any], origins: Mapping[str, str]) -> T:
    missing = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.init
        and f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{cls.__qualname__}: no value for {', '.join(map(repr, missing))}")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        sources = sorted({origins[key] for key in values})
        raise ConfigError(f"{', '.join(sources) or cls.__qualname__}: {error}") from error


def _checked(key: str, value: Value[Any], kinds: Mapping[str, Any]) -> object:
    if key not in kinds:
        raise ConfigError(
            f"{value.origin}: unknown key {key!r}.{did_you_mean(key, kinds)}",
            hint=f"known keys: {', '.join(kinds) or 'none'}",
        )
    try:
        return _conform(value.value, kinds[key])
    except ValueError:
        raise ConfigError(
            f"{value.origin}: {key!r} must be {describe(kinds[key])}, not {value.value!r}"
        ) from None


# ------------------------------------------------------------------------------- values


def _conform(value: object, kind: Any) -> object:
    """``value`` converted to type ``kind``; ValueError if it has another type."""
    if kind in _SCALARS:
        return _SCALARS[kind].check(value)
    if get_origin(kind) is Literal:
        return _member(value, get_args(kind))
    if get_origin(kind) in _UNIONS:
        return _first(value, get_args(kind), _conform)
    return _sequence(value, kind)


def _member(value: object, members: tuple[Any, ...]) -> object:
    # 1 == True == 1.0, so equality alone would let a bool pass for a number.
    if any(type(value) is type(m) and value == m for m in members):
        return value
    raise ValueError(value)


def _first(
    value: Any,
    kinds: Sequence[Any],
    read: Callable[[Any, Any], object],
) -> object:
    for kind in kinds:
        try:
            return read(value, kind)
        except ValueError:
            continue
    raise ValueError(value)


def _sequence(value: object, kind: Any) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError(value)
    items = _items(kind)
    if len(items) == 1 and not _is_fixed(kind):
        items = items * len(value)
    if len(items) != len(value):
        raise ValueError(value)
    made = [_conform(v, k) for v, k in zip(value, items, strict=True)]
    return made if get_origin(kind) is list else tuple(made)


def _items(kind: Any) -> tuple[Any, ...]:
    return tuple(k for k in get_args(kind) if k is not Ellipsis)


def _is_fixed(kind: Any) -> bool:
    return get_origin(kind) is tuple and Ellipsis not in get_args(kind)


def _plural(kind: Any) -> str:
    return _SCALARS[kind].plural if kind in _SCALARS else f"items, each {describe(kind)}"


@dataclass(frozen=True, slots=True)
class _Scalar:
    noun: str
    plural: str
    check: Callable[[Any], object]
    read: Callable[[str], object]


def _only(kind: type[Any]) -> Callable[[Any], object]:
    """A check for exactly ``kind``: in Python a bool is an int, in a config file it is not."""

    def check(value: Any) -> object:
        # Not `isinstance`: in Python, True is an int.
        if type(value) is not kind:
            raise ValueError(value)
        return value

    return check


def _float(value: Any) -> object:
    if type(value) not in (int, float):
        raise ValueError(value)
    return float(value)


def _bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


def _none(text: str) -> None:
    if text.strip():
        raise ValueError(text)


_SCALARS: Mapping[Any, _Scalar] = types.MappingProxyType(
    {
        bool: _Scalar("true or false", "booleans", _only(bool), _bool),
        int: _Scalar("an integer", "integers", _only(int), int),
        float: _Scalar("a number", "numbers", _float, float),
        str: _Scalar("a string", "strings", _only(str), str),
        type(None): _Scalar("nothing", "nothing", _only(type(None)), _none),
    }
)


# ------------------------------------------------------------------------------- environment


def _from_env(variable: str, text: str, kind: Any) -> object:
    try:
        return _read(text, kind)
    except ValueError:
        raise ConfigError(f"env {variable} must be {_describe_text(kind)}, not {text!r}") from None


def _read(text: str, kind: Any) -> object:
    """``text`` read as type ``kind``; ValueError if it cannot be. Lists are comma separated."""
    if kind in _SCALARS:
        return _SCALARS[kind].read(text)
    if get_origin(kind) is Literal:
        return _named(text.strip(), get_args(kind))
    if get_origin(kind) in _UNIONS:
        return _first(text, _readable(kind), _read)
    parts = [p.strip() for p in text.split(",")] if text.strip() else []
    return _sequence_of_text(parts, kind)


def _readable(kind: Any) -> list[Any]:
    """The members of a union in the order to try them.

    An empty text is an empty list rather than None, and None rather than an empty string.
    """
    rank = {type(None): 1, str: 2}
    members = get_args(kind)
    return sorted(members, key=lambda k: 0 if get_origin(k) else rank.get(k, 1))


def _sequence_of_text(parts: list[str], kind: Any) -> object:
    items = _items(kind) if _is_fixed(kind) else _items(kind) * len(parts)
    if len(items) != len(parts):
        raise ValueError(parts)
    return [_read(p, k) for p, k in zip(parts, items, strict=True)]


def _named(text: str, members: tuple[Any, ...]) -> object:
    for member in members:
        if str(member) == text:
            return member
    raise ValueError(text)


def _describe_text(kind: Any) -> str:
    return "one of 1, true, on, yes, 0, false, off, no" if kind is bool else describe(kind)

"""Casts of arguments under autocast, read off a call's recorded body.

There is no policy table: a body is recorded below autocast, so PyTorch's own policy appears in it
as casts of the body's inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tj_core.extend import (
    NO_TAGS,
    Body,
    BoundSymbol,
    Constant,
    Proxy,
    formal_index,
    leaves,
    map_tree,
    without_grad,
)

__all__ = ["Cast", "cast_of", "casts_of", "same_but_for_casts", "with_casts"]

CAST = "aten._to_copy.default"


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast of an argument in a body: the name of its ``result``, the flat indices of the
    argument, the data type.

    A call that takes an argument twice casts it twice, the last occurrence first, as C++ evaluates
    arguments. If the number of casts is not that of the occurrences (a cast at each step of a
    loop), each cast has all indices; it can stand for them only where autocast's cache makes them
    one value.
    """

    result: str
    places: tuple[int, ...]
    dtype: Constant


def cast_of(call: BoundSymbol) -> tuple[Proxy, Constant] | None:
    """The argument and data type of ``call``, if it is a cast and nothing else; else None."""
    if call.symbol.qualname != CAST or len(call.args) != 1:
        return None
    (value,), kwargs = call.args, dict(call.kwargs)
    dtype = kwargs.get("dtype")
    if len(kwargs) != 1 or not isinstance(value, Proxy) or not isinstance(dtype, Constant):
        return None
    return value, dtype


def casts_of(call: BoundSymbol) -> tuple[Cast, ...]:
    """Casts of arguments that the body of ``call`` uses only through casts, in the body's order."""
    assert call.body is not None
    results: dict[str, list[tuple[str, Constant]]] = {}
    # An input that is also used as it is has to reach the call in both data types.
    others = {p.name for p in leaves(call.body.outputs) if isinstance(p, Proxy)}
    for inner in call.body.calls:
        cast = cast_of(inner)
        if cast is None:
            others.update(p.name for p in inner.flat_args)
        else:
            results.setdefault(cast[0].name, []).append((inner.flat_outs[0].name, cast[1]))
    made: dict[str, Cast] = {}
    for formal in call.body.inputs:
        if formal.name in results and formal.name not in others:
            made.update((c.result, c) for c in _placed(call, formal, results[formal.name]))
    order = (p.name for inner in call.body.calls for p in inner.flat_outs)
    return tuple(made[name] for name in order if name in made)


def _placed(
    call: BoundSymbol, formal: Proxy, results: list[tuple[str, Constant]]
) -> Iterator[Cast]:
    """Yield the casts of the argument that ``formal`` stands for, with its flat indices in the
    call.
    """
    name = call.flat_args[formal_index(formal.name)].name
    places = tuple(i for i, p in enumerate(call.flat_args) if p.name == name)
    if len(results) == len(places):
        for (result, dtype), place in zip(results, reversed(places), strict=True):
            yield Cast(result, (place,), dtype)
    else:
        for result, dtype in results:
            yield Cast(result, places, dtype)


def with_casts(call: BoundSymbol, casts: Mapping[Cast, Proxy]) -> BoundSymbol:
    """``call`` with cast values in place of its arguments; it must be expanded again."""
    values = {place: value for cast, value in casts.items() for place in cast.places}
    count = iter(range(len(call.flat_args)))

    def cast(p: Proxy) -> Proxy:
        return values.get(next(count), p)

    args = map_tree(cast, call.args, Proxy)
    return call.replace(args=args, kwargs=map_tree(cast, call.kwargs, Proxy))


def same_but_for_casts(
    before: BoundSymbol, after: BoundSymbol, casts: Mapping[Cast, Proxy]
) -> bool:
    """Check that the body of ``after`` is that of ``before`` with the values of ``casts`` for its
    casts.
    """
    if before.body is None or after.body is None:
        return False
    if before.effects.aliases != after.effects.aliases:
        return False
    values = {cast.result: value.name for cast, value in casts.items()}
    return _steps(before, before.body, values) == _steps(after, after.body, {})


def _steps(call: BoundSymbol, body: Body, casts: Mapping[str, str]) -> list[Any]:
    """The calls of ``body`` in terms of the program's values, in a form that can be compared."""
    names = {p.name: call.flat_args[formal_index(p.name)].name for p in body.inputs}
    made: list[Any] = []
    defined = 0
    for inner in body.calls:
        (first, *_) = (*(p.name for p in inner.flat_outs), "")
        if first in casts:
            names[first] = casts[first]
            continue
        step = (inner.symbol, _named(inner.args, names), _named(inner.kwargs, names))
        for p in inner.flat_outs:
            names.setdefault(p.name, f"{defined}")  # a number is no value's name
            defined += 1
        made.append((*step, tuple(_metadata(inner.flat_outs)), inner.effects))
    return [*made, _named((body.outputs, body.updates), names)]


def _metadata(values: Iterable[Proxy]) -> Iterator[Proxy]:
    """Yield ``values`` without names, tags and ``requires_grad``."""
    for p in values:
        yield without_grad(p.replace(name="", tags=NO_TAGS))


def _named(tree: Any, names: Mapping[str, str]) -> Any:
    return map_tree(lambda p: (names[p.name],), tree, Proxy)

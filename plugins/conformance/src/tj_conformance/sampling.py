"""Sampling of combinations for the default run of the tests, all with ``TJ_FULL=1``; batches."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

__all__ = ["FULL", "batches", "pairwise"]

FULL = os.environ.get("TJ_FULL") == "1"
"""True if everything is run."""


def batches(each: Iterable[T], size: int) -> Iterator[list[T]]:
    """The members of ``each`` in groups of ``size``."""
    rest = iter(each)
    while batch := list(itertools.islice(rest, size)):
        yield batch


def pairwise(full: bool = FULL, **axes: Iterable[Any]) -> dict[str, Any]:
    """Arguments of `pytest.mark.parametrize` in which each pair of values of two axes occurs.

    With ``full``, all combinations.
    """
    values = {name: list(axis) for name, axis in axes.items()}
    rows = list(itertools.product(*values.values()))
    chosen = rows if full else _covering(rows)
    ids = ["-".join(map(_name, row)) for row in chosen]
    return {"argnames": tuple(values), "argvalues": chosen, "ids": ids}


def _covering(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Select rows, greedily, that have all pairs in ``rows``: each
    next one has the most new pairs.
    """
    pairs = {i: _pairs(row) for i, row in enumerate(rows)}
    missing = set[Any]().union(*pairs.values())
    chosen = []
    while missing:
        best = max(pairs, key=lambda i: (len(pairs[i] & missing), -i))
        missing -= pairs.pop(best)
        chosen.append(best)
    return [rows[i] for i in sorted(chosen)]


def _pairs(row: tuple[Any, ...]) -> set[Any]:
    places = [(at, id(value)) for at, value in enumerate(row)]
    return set(itertools.combinations(places, 2))


def _name(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{k}={_name(v)}" for k, v in value.items())
    return str(getattr(value, "__name__", value))

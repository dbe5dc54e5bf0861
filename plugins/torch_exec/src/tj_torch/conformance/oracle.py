"""Comparing with eager: values, structure and mutated inputs, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch
from torch.utils import _pytree as pytree

__all__ = [
    "Difference",
    "assert_equal",
    "assert_jits",
    "clone_tree",
    "compare",
    "differences",
    "seeded",
]


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in which two results differ, and how."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def clone_tree(tree: Any) -> Any:
    """``tree`` with every tensor cloned; parameters stay parameters, strides stay strides."""

    def clone(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with torch.no_grad():
            copy = value.detach().clone()
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(copy, requires_grad=value.requires_grad)
        return copy.requires_grad_(value.requires_grad)

    return pytree.tree_map(clone, tree)


def seeded(fn: Callable[..., Any], args: Any, kwargs: Any, seed: int = 11) -> Any:
    """``fn(*args, **kwargs)`` with PyTorch's generator at ``seed``."""
    torch.manual_seed(seed)
    return fn(*args, **kwargs)


def compare(
    reference: Callable[..., Any],
    candidate: Callable[..., Any],
    args: Any,
    kwargs: Any,
    *,
    values: bool = True,
    exact: bool = True,
) -> list[Difference]:
    """Call both on clones of the arguments; every difference in results and mutated arguments.

    ``values=False`` compares metadata only, for operations whose values nobody defines;
    ``exact=False`` allows the rounding that `torch.testing.assert_close` does.
    """
    mine, theirs = clone_tree((args, kwargs)), clone_tree((args, kwargs))
    expected = seeded(reference, *theirs)
    got = seeded(candidate, *mine)
    return [
        *differences(got, expected, "result", values=values, exact=exact),
        *differences(mine, theirs, "arguments", values=values, exact=exact),
    ]


def differences(
    got: Any,
    expected: Any,
    where: str = "result",
    *,
    values: bool = True,
    exact: bool = True,
) -> list[Difference]:
    """Where two trees differ: structure, types, metadata, bits (with ``exact``)."""
    mine, my_spec = pytree.tree_flatten(got)
    theirs, their_spec = pytree.tree_flatten(expected)
    if my_spec != their_spec or type(got) is not type(expected):
        return [Difference(where, f"structure {my_spec} instead of {their_spec}")]
    found = []
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        what = _leaf(a, b, values, exact)
        if what:
            found.append(Difference(f"{where}[{i}]", what))
    return found


def _leaf(got: Any, expected: Any, values: bool, exact: bool) -> str | None:
    if not isinstance(expected, torch.Tensor):
        return None if _equal(got, expected) else f"{got!r} instead of {expected!r}"
    if type(got) is not type(expected):
        return f"{type(got).__name__} instead of {type(expected).__name__}"
    for name in ("shape", "dtype", "device", "layout", "requires_grad"):
        mine, theirs = getattr(got, name), getattr(expected, name)
        if mine != theirs:
            return f"{name} {mine} instead of {theirs}"
    if expected.layout is torch.strided and got.stride() != expected.stride():
        return f"strides {got.stride()} instead of {expected.stride()}"
    return _values(got, expected, exact) if values else None


def _values(got: torch.Tensor, expected: torch.Tensor, exact: bool) -> str | None:
    tolerance = 0.0 if exact else None  # None: the usual one of the data type
    try:
        torch.testing.assert_close(
            got.detach(), expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def _equal(got: Any, expected: Any) -> bool:
    if got is expected:
        return True
    if isinstance(expected, float) and isinstance(got, float):
        return got == expected or (math.isnan(got) and math.isnan(expected))
    return type(got) is type(expected) and bool(got == expected)


def assert_equal(got: Any, expected: Any) -> None:
    """Fail where two trees differ in structure, metadata or bits."""
    found = differences(got, expected)
    assert not found, "\n".join(map(str, found))


def assert_jits(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compiled, then from the cache, ``tj.jit(f)`` returns what ``f`` does, without a fallback.

    Returns the jitted ``f``.
    """
    jitted = tj.jit(f)
    for _ in range(2):
        assert_equal(seeded(jitted, args, kwargs), seeded(f, args, kwargs))
    stats = tj.stats(jitted)
    assert (stats.hits, stats.fallbacks) == (1, ())
    return jitted

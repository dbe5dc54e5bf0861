"""Observable state of a set of tensors, and the comparison of two such sets.

A `World` is one side of a comparison: the tensors that a call was given, made, or could reach, each
under a label by which a user gets at it (``args[0]``, ``out['x']``, ``out[1]._base``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tj_conformance.oracle.compare import Difference
from tj_conformance.oracle.configurations import current

__all__ = ["World", "attempt", "compare_worlds", "look_at", "same_bits", "same_but_for_rounding"]

Look = Callable[[torch.Tensor], Any]


@dataclass(frozen=True, slots=True)
class World:
    """Labelled tensors, each object once for each way to reach it, and other values."""

    tensors: tuple[tuple[str, torch.Tensor], ...]
    others: tuple[tuple[str, Any], ...]

    def distinct(self) -> dict[str, torch.Tensor]:
        """Each tensor once, under the first of its labels."""
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for label, tensor in self.tensors:
            found.setdefault(id(tensor), (label, tensor))
        return dict(found.values())


def look_at(**roots: Any) -> World:
    """Make the world of trees of values: their leaves, and the tensors' bases and gradients."""
    tensors: list[tuple[str, torch.Tensor]] = []
    others: list[tuple[str, Any]] = []
    seen: set[int] = set()
    for name, tree in roots.items():
        for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
            label = name + pytree.keystr(path)
            if not isinstance(leaf, torch.Tensor):
                others.append((label, leaf))
                continue
            for found in _reachable(label, leaf):
                if found[0] == label or id(found[1]) not in seen:
                    tensors.append(found)
                    seen.add(id(found[1]))
        others.append((f"the structure of {name}", str(pytree.tree_structure(tree))))
    return World(tuple(tensors), tuple(others))


def _reachable(label: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    yield label, tensor
    grad = attempt(_gradient, tensor)
    if isinstance(grad, torch.Tensor):
        yield f"{label}.grad", grad
    if tensor._is_view() and tensor._base is not None:
        yield from _reachable(f"{label}._base", tensor._base)


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def attempt(fn: Callable[..., Any], *args: Any) -> Any:
    """The result, or the type of the exception: what a caller sees either way."""
    try:
        return fn(*args)
    except Exception as error:
        return f"raises {type(error).__name__}"


# --------------------------------------------------------------------------- facts


def _graph(tensor: torch.Tensor) -> Any:
    """Presence of a history in autograd, and the chain of views from a view to its base."""
    node = tensor.grad_fn
    if node is None:
        return None
    custom = isinstance(node, torch.autograd.function.BackwardCFunction)
    return type(node).__name__ if tensor._is_view() and not custom else "a grad_fn"


def _strides(tensor: torch.Tensor) -> Any:
    return tensor.stride() if tensor.layout is torch.strided else None


def _strides_that_reach(tensor: torch.Tensor) -> Any:
    """Strides without those of dimensions of size one, which PyTorch's kernels choose freely."""
    strides = _strides(tensor)
    return strides and [s for s, n in zip(strides, tensor.shape, strict=True) if n > 1]


FACTS: dict[str, Look] = {
    "type": lambda t: type(t).__name__,
    "shape": lambda t: tuple(t.shape),
    "dtype": lambda t: t.dtype,
    "device": lambda t: t.device,
    "layout": lambda t: t.layout,
    "strides": _strides,
    "offset": lambda t: t.storage_offset(),
    "bytes of storage": lambda t: t.untyped_storage().nbytes(),
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    "retains_grad": lambda t: t.retains_grad,
    "is a view": lambda t: t._is_view(),
    "grad_fn": _graph,
    "_version": lambda t: t._version,
    "inference": lambda t: t.is_inference(),
    "conj": lambda t: t.is_conj(),
    "neg": lambda t: t.is_neg(),
}
"""Observable facts of one tensor, as functions; an exception counts as the fact."""

RELATIONS: dict[str, Look] = {
    "is the same object as": id,
    "shares storage with": lambda t: t.untyped_storage()._cdata,
    "shares memory with": lambda t: t.untyped_storage().data_ptr() or t.untyped_storage()._cdata,
    "has the base of": lambda t: id(t._base) if t._is_view() and t._base is not None else None,
}
"""Relations of tensors, as key functions: tensors with equal keys are related. With shape, strides
and offset they determine if and where two tensors overlap.
"""


GRADIENT: dict[str, Look] = {
    name: FACTS[name]
    for name in ("type", "shape", "dtype", "device", "layout", "strides", "requires_grad")
}
"""Facts of a gradient that are compared; its version and memory depend on the autograd engine."""

ROUNDED: dict[str, Look] = {**GRADIENT, "strides": _strides_that_reach}
"""Facts of a gradient whose contributions may be added in another order."""


_OF_DOUBLES = 1e-7
"""Tolerance of `torch.testing.assert_close` for float64."""


def compare_worlds(
    got: World, expected: World, when: str, ignore: Collection[str] = (), rounding: bool = False
) -> list[Difference]:
    """Yield every difference at moment ``when``, except in the facts named in ``ignore``.

    ``rounding``: gradients may differ by the order in which contributions are added.
    """
    labels = [label for label, _ in got.tensors], [label for label, _ in expected.tensors]
    if labels[0] != labels[1]:
        more, less = (sorted({*a} - {*b}) for a, b in (labels, labels[::-1]))
        return [Difference(when, f"tensors {more} instead of {less}")]
    found = [*_other_values(got, expected, when)]
    for (label, mine), (_, theirs) in zip(got.tensors, expected.tensors, strict=True):
        gradient = label.endswith(".grad")
        facts, values = GRADIENT if gradient else FACTS, same_bits
        if current().rounds:
            values = same_but_for_rounding
        if gradient and rounding:
            facts, values = ROUNDED, same_but_for_rounding
        wanted = {name: look for name, look in facts.items() if name not in ignore}
        found += _facts(mine, theirs, f"{when}: {label}", wanted, values)
    found += _relations(got, expected, when)
    return found


def _other_values(got: World, expected: World, when: str) -> Iterator[Difference]:
    mine, theirs = dict(got.others), dict(expected.others)
    for label in dict.fromkeys([*theirs, *mine]):
        a, b = mine.get(label), theirs.get(label)
        if type(a) is not type(b) or not _equal(a, b):
            yield Difference(f"{when}: {label}", f"{a!r} instead of {b!r}")


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, float) and current().rounds:  # an element, by ``item``
        share = current().tolerance or _OF_DOUBLES
        return math.isclose(a, b, rel_tol=share, abs_tol=share)
    return a is b or bool(a == b)


def _facts(
    mine: torch.Tensor,
    theirs: torch.Tensor,
    where: str,
    facts: dict[str, Look],
    values: Callable[[torch.Tensor, torch.Tensor], str | None],
) -> Iterator[Difference]:
    for name, look in facts.items():
        a, b = attempt(look, mine), attempt(look, theirs)
        if a != b:
            yield Difference(where, f"{name} {a} instead of {b}")
    if (what := values(mine, theirs)) is not None:
        yield Difference(where, f"values: {what}")


def _relations(got: World, expected: World, when: str) -> Iterator[Difference]:
    for name, key in RELATIONS.items():
        mine, theirs = _groups(got, key), _groups(expected, key)
        for label, first in mine.items():
            if first != theirs[label]:
                what = f"{name} {first or 'none'} instead of {theirs[label] or 'none'}"
                yield Difference(f"{when}: {label}", what)


def _groups(world: World, key: Look) -> dict[str, str | None]:
    """For each label the first one with its key."""
    first: dict[Any, str] = {}
    found: dict[str, str | None] = {}
    for label, tensor in world.tensors:
        if label.endswith(".grad"):
            continue
        value = attempt(key, tensor)
        found[label] = None if value is None else first.setdefault(value, label)
    return found


def same_bits(got: torch.Tensor, expected: torch.Tensor) -> str | None:
    """None if the values are equal (NaN is NaN), else the difference."""
    mine, theirs = got.detach(), expected.detach()
    if mine.layout is torch.strided and mine.dtype == theirs.dtype and mine.equal(theirs):
        return None
    return _close(mine, theirs, 0.0, 0.0)


def same_but_for_rounding(got: torch.Tensor, expected: torch.Tensor) -> str | None:
    """None if the values are equal within the tolerance of their type, else the difference.

    A tolerance of the configuration replaces that of the type.
    """
    mine, theirs = got.detach(), expected.detach()
    if (share := current().tolerance) is None or not theirs.is_floating_point():
        return _close(mine, theirs)
    finite = theirs.double().nan_to_num(0, 0, 0).abs()
    largest = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return _close(mine, theirs, share, share * largest)


def _close(
    mine: torch.Tensor, theirs: torch.Tensor, rtol: float | None = None, atol: float | None = None
) -> str | None:
    try:
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None

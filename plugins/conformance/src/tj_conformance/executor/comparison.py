"""The comparison of two runs: metadata and shared memory exactly, values within a tolerance."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tj_conformance.executor.rounding import Runs, rounds
from tj_conformance.oracle.compare import Difference, call_differences, same_bits

__all__ = ["Differs", "Tolerance", "same", "same_call", "tolerating"]


class Differs(AssertionError):
    """Two runs that must be alike are not."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerances that a plugin declares, relative and absolute, by name of the data type.

    Other data types have the tolerance of `torch.testing.assert_close`. ``bitwise``: none.
    """

    declared: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    bitwise: bool = False


USUAL = Tolerance()

# Set in a block of one thread alone (`tolerating`).
_current: ContextVar[Tolerance] = ContextVar("tolerance", default=USUAL)
_rounding: ContextVar[list[str] | None] = ContextVar("rounding", default=None)


@contextlib.contextmanager
def tolerating(tolerance: Tolerance) -> Iterator[list[str]]:
    """Compare values within ``tolerance``; the list is of differences that eager's rounding has."""
    noted: list[str] = []
    before = _current.set(tolerance), _rounding.set(noted)
    try:
        yield noted
    finally:
        _current.reset(before[0])
        _rounding.reset(before[1])


def same(got: Any, expected: Any, whose: str, runs: Runs | None = None) -> None:
    """Raise unless the two trees are alike; ``runs`` say how far eager's values are rounded.

    :raises Differs: with what differs, in ``whose`` values.
    """
    same_call((got, ()), (expected, ()), whose, runs)


def same_call(
    got: tuple[Any, Any],
    expected: tuple[Any, Any],
    whose: str = "result",
    runs: Runs | None = None,
) -> None:
    """Raise unless two runs are alike; each is a tree of results, and the arguments after it.

    :raises Differs: with what differs, in ``whose`` values.
    """
    found = call_differences(*got, *expected, values=False)
    wrong = [_named(d, whose) for d in found if not _idle(d, got[0], expected[0])]
    if not wrong:
        wrong = list(_values(got[0], expected[0], whose, runs))
        wrong += _values(got[1], expected[1], "argument", None)
    if wrong:
        raise Differs("; ".join(wrong))


def _named(difference: Difference, whose: str) -> str:
    where = difference.where.replace("result", whose).replace("arguments", "argument")
    return f"{where}: {difference.what}"


def _idle(difference: Difference, got: Any, expected: Any) -> bool:
    """True for other strides where no address depends on them: sizes 0 and 1."""
    if not difference.what.startswith("stride") or not difference.where.startswith("result["):
        return False
    at = int(difference.where[len("result[") : -1])
    mine, theirs = (pytree.tree_leaves(tree)[at] for tree in (got, expected))
    sizes = zip(mine.shape, mine.stride(), theirs.stride(), strict=True)
    return mine.numel() == 0 or all(n == 1 or a == b for n, a, b in sizes)


def _values(got: Any, expected: Any, whose: str, runs: Runs | None) -> Iterator[str]:
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True)
    wrong = [
        f"{whose}[{i}]: {problem}"
        for i, (a, b) in enumerate(pairs)
        if isinstance(b, torch.Tensor) and (problem := _tensor(a.detach(), b.detach()))
    ]
    if wrong and runs is not None and not _current.get().bitwise:
        if _as_exact(got, expected, runs.exact):
            return
        if rounds(got, expected, runs):
            if (noted := _rounding.get()) is not None:
                noted += wrong
            return
    yield from wrong


def _as_exact(got: Any, expected: Any, exact: Callable[[int], Any]) -> bool:
    """Check that each value is eager's, or that of the call in double precision.

    oneDNN's `gelu`, for one, is NaN at infinity, and PyTorch's own is not.
    """
    try:
        known = pytree.tree_leaves(exact(0))
        trees = pytree.tree_leaves(got), pytree.tree_leaves(expected), known
        return all(_either(*each) for each in zip(*trees, strict=True))
    except Exception:  # it has no form in double precision
        return False


def _either(got: Any, expected: Any, exact: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return True  # structure and numbers are compared before
    rtol, atol = torch.testing._comparison.default_tolerances(expected.dtype)
    values = got.detach(), expected.detach(), exact.detach().to(expected.dtype)
    first, *others = (x.resolve_conj().to_dense() for x in values)
    right = [torch.isclose(first, x, rtol=rtol, atol=atol, equal_nan=True) for x in others]
    return bool((right[0] | right[1]).all())


def _tensor(got: torch.Tensor, expected: torch.Tensor) -> str | None:
    """A problem in words, or None for values within the tolerance."""
    tolerance = _current.get()
    if tolerance.bitwise:
        return None if same_bits(got, expected) else _text(got, expected, 0, 0)
    name = str(expected.dtype).removeprefix("torch.")
    rtol, atol = tolerance.declared.get(name, (None, None))
    try:
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError:
        return None if _rounded(got, expected) else _text(got, expected, rtol, atol)
    return None


def _rounded(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Check the tolerance relative to the largest value: terms of a sum may cancel."""
    if not (got.is_floating_point() or got.is_complex()) or got.layout is not torch.strided:
        return False
    finite = torch.isfinite(expected)
    if not torch.equal(finite, torch.isfinite(got)) or not finite.any():
        return False
    size = expected[finite].abs().max().item()
    rtol, atol = torch.testing._comparison.default_tolerances(expected.dtype)
    try:
        torch.testing.assert_close(
            got, expected, rtol=rtol, atol=atol + rtol * size, equal_nan=True
        )
    except AssertionError:
        return False
    return True


def _text(got: torch.Tensor, expected: torch.Tensor, rtol: float | None, atol: float | None) -> str:
    try:
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return "the bits of a zero or of a NaN differ"

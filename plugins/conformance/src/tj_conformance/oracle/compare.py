"""Exact comparison with eager: values, metadata, structure, shared storage and mutated inputs."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch
from tj_torch.extend import storage_id
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tj_conformance.oracle.configurations import current
from tj_conformance.oracle.device import seed
from tj_conformance.oracle.twins import clone_tree

__all__ = [
    "Difference",
    "assert_captured",
    "assert_equal",
    "assert_jits",
    "assert_retraces",
    "call_differences",
    "compare",
    "differences",
    "gradients",
    "same_bits",
    "seeded",
]

_METADATA = ("shape", "dtype", "device", "layout", "requires_grad")


@dataclass(frozen=True, slots=True)
class Difference:
    """One place in which two results differ, and the difference.

    ``rounding`` is true if only the last bits of values differ, within the tolerance of
    `torch.testing.assert_close` for the data type.
    """

    where: str
    what: str
    rounding: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def seeded(fn: Callable[..., Any], args: Any, kwargs: Any, number: int = 11) -> Any:
    """``fn(*args, **kwargs)`` with PyTorch's generators seeded by ``number``."""
    seed(number)
    return fn(*args, **kwargs)


def compare(
    reference: Callable[..., Any],
    candidate: Callable[..., Any],
    args: Any,
    kwargs: Any,
    *,
    values: bool = True,
) -> list[Difference]:
    """Call both on clones of the arguments; every difference in results and mutated arguments.

    Results are also compared in which arguments they are, or share storage with.
    ``values=False`` compares metadata only, for operations whose values nobody defines.
    """
    mine, theirs = clone_tree((args, kwargs)), clone_tree((args, kwargs))
    expected = seeded(reference, *theirs)
    got = seeded(candidate, *mine)
    return call_differences(got, mine, expected, theirs, values=values)


def call_differences(
    got: Any, mine: Any, expected: Any, theirs: Any, *, values: bool = True
) -> list[Difference]:
    """Differences of two calls, in their results or in their arguments afterwards."""
    return [
        *differences(got, expected, "result", values=values),
        *differences(mine, theirs, "arguments", values=values),
        *_sharing(got, mine, expected, theirs),
    ]


def differences(
    got: Any, expected: Any, where: str = "result", *, values: bool = True
) -> list[Difference]:
    """Differences of two trees in structure, types, metadata or bits.

    Last bits do not count where the configuration rounds.
    """
    mine, my_spec = pytree.tree_flatten(got)
    theirs, their_spec = pytree.tree_flatten(expected)
    if my_spec != their_spec or type(got) is not type(expected):
        return [Difference(where, f"structure {my_spec} instead of {their_spec}")]
    return [
        Difference(f"{where}[{i}]", *what)
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True))
        for what in _leaf(a, b, values)
        if not (what[1] and current().rounds)
    ]


def _leaf(got: Any, expected: Any, values: bool) -> Iterator[tuple[str, bool]]:
    """The first difference of two leaves, and True if it is rounding."""
    if not isinstance(expected, torch.Tensor):
        if not _equal(got, expected):
            yield f"{got!r} instead of {expected!r}", False
    elif what := _metadata(got, expected):
        yield what, False
    elif is_traceable_wrapper_subclass(expected):
        yield from _inner(got, expected, values)
    elif values and not same_bits(got, expected):
        yield _values(got, expected)


def _inner(got: Any, expected: Any, values: bool) -> Iterator[tuple[str, bool]]:
    """The first difference of the inner tensors of two tensors of one wrapper subclass."""
    (names, mine), (their_names, theirs) = got.__tensor_flatten__(), expected.__tensor_flatten__()
    if (names, mine) != (their_names, theirs):
        yield f"holds {names}, {mine} instead of {their_names}, {theirs}", False
        return
    for name in names:
        for what, rounding in _leaf(getattr(got, name), getattr(expected, name), values):
            yield f"{name}: {what}", rounding


def _metadata(got: Any, expected: torch.Tensor) -> str | None:
    if type(got) is not type(expected):
        return f"{type(got).__name__} instead of {type(expected).__name__}"
    for name in _METADATA:
        mine, theirs = getattr(got, name), getattr(expected, name)
        if mine != theirs:
            return f"{name} {mine} instead of {theirs}"
    for name in ("stride", "is_conj", "is_neg") if expected.layout is torch.strided else ():
        mine, theirs = getattr(got, name)(), getattr(expected, name)()
        if mine != theirs:
            return f"{name} {mine} instead of {theirs}"
    return None


def same_bits(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Check that two tensors of one shape and data type hold the
    same bits, NaN and -0.0 included.
    """
    return torch.equal(_bits(got), _bits(expected))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    copy = torch.empty(flat.shape, dtype=flat.dtype, device=flat.device)  # whatever the default is
    return copy.copy_(flat).view(torch.uint8)


def _values(got: torch.Tensor, expected: torch.Tensor) -> tuple[str, bool]:
    got, expected = got.detach(), expected.detach()
    try:
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split()), _close(got, expected)
    return "the bits of a zero or of a NaN differ", True


def _close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(got, expected, equal_nan=True)
    except AssertionError:
        return False
    return got.is_floating_point() or got.is_complex()


def _equal(got: Any, expected: Any) -> bool:
    if got is expected:
        return True
    if isinstance(expected, float) and isinstance(got, float):
        return got == expected or (math.isnan(got) and math.isnan(expected))
    return type(got) is type(expected) and bool(got == expected)


def _sharing(got: Any, mine: Any, expected: Any, theirs: Any) -> Iterator[Difference]:
    """Results that are an argument or an earlier result, or a view of one, in one call only."""
    pairs = itertools.zip_longest(_shared(got, mine), _shared(expected, theirs))
    for i, (ours, eagers) in enumerate(pairs):
        if ours != eagers:
            yield Difference(f"result[{i}]", f"shares {ours} instead of {eagers}")


def _shared(result: Any, arguments: Any) -> list[str]:
    known = tensors_in(arguments)
    count = len(known)
    found = []
    for out in tensors_in(result):
        places = [f"{_place(i, count)}{how}" for i, t in enumerate(known) if (how := _how(out, t))]
        found.append(", ".join(places) or "nothing")
        known.append(out)
    return found


def _place(index: int, count: int) -> str:
    return f"argument {index}" if index < count else f"result {index - count}"


def _how(out: torch.Tensor, other: torch.Tensor) -> str:
    if out is other:
        return " itself"
    empty = out.numel() == 0 or other.numel() == 0  # nothing to share
    shares = not empty and storage_id(out) == storage_id(other)
    return "'s storage" if shares else ""


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of ``tree``, in order."""
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def assert_equal(got: Any, expected: Any) -> None:
    """Raise an AssertionError if two trees differ in structure, metadata or bits."""
    found = differences(got, expected)
    assert not found, "\n".join(map(str, found))


def assert_jits(
    f: Callable[..., Any], *args: Any, jit: Callable[..., Any] = tj.jit, **kwargs: Any
) -> Any:
    """Assert that ``jit(f)`` does what ``f`` does, compiled and then from the cache, without a
    fallback.

    Returns the jitted ``f``.
    """
    jitted = jit(f)
    for _ in range(2):
        found = compare(f, jitted, args, kwargs)
        assert not found, "\n".join(map(str, found))
    stats = tj.stats(jitted)
    assert (stats.hits, stats.misses, stats.fallbacks) == (1, 1, ())
    return jitted


def assert_captured(f: Callable[..., Any], *args: torch.Tensor, needs_grad: bool) -> Any:
    """Compare two calls of ``tj.jit(f)``, without fallbacks, with eager; return that."""
    jitted = tj.jit(f, check=2)
    for _ in range(2):
        mine = [t.requires_grad_(needs_grad) for t in clone_tree(args)]
        theirs = [t.requires_grad_(needs_grad) for t in clone_tree(args)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # eager says that operations would like a compiler
            expected = seeded(f, theirs, {})
        got = seeded(jitted, mine, {})
        assert_equal(got, expected)
        if needs_grad:
            torch.testing.assert_close(
                gradients(got, mine), gradients(expected, theirs), rtol=0, atol=0
            )
    assert tj.stats(jitted).fallbacks == ()
    assert tj.stats(jitted).hits == 1
    return jitted


def gradients(out: Any, inputs: Any) -> Any:
    """The gradients of all tensors in ``out`` that need one, for those of ``inputs`` that do."""
    outs = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    wanted = [t for t in inputs if t.requires_grad]
    return torch.autograd.grad([o.sum() for o in outs], wanted, allow_unused=True)


def assert_retraces(
    f: Any, jitted: Any, *args: Any, retraces: bool | None = None, **kwargs: Any
) -> None:
    """Compare a call of ``jitted`` with ``f``, and whether it compiled with ``retraces``."""
    before = tj.stats(jitted).misses
    expected = f(*args, **kwargs)
    got = jitted(*args, **kwargs)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    if retraces is not None:
        assert (tj.stats(jitted).misses > before) is retraces

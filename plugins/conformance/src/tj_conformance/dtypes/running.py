"""The comparison of a program of mixed data types with eager.

All that a caller sees is compared: data types, shapes, strides, who shares memory, written
arguments, gradients and exceptions. Integers, places of NaN and infinities, and signs of zero are
equal. Other values differ by the rounding of their data type, or by as much as eager's do if each
of its operations is rounded otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch

from tj_conformance.dtypes.programs import Program, given
from tj_conformance.dtypes.shaking import Shaken
from tj_conformance.programs.modules import module_of
from tj_conformance.ways.running import WAYS, Jit

if TYPE_CHECKING:
    from tj_conformance.dtypes.arguments import Argument

__all__ = ["compare", "run"]

Compiled = Callable[..., Any]
Facts = dict[str, Any]

SHAKES = 8
"""Number of runs of eager with other rounding."""

ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1.3e-6, torch.float64: 1e-11}
"""Accepted relative differences."""


def run(program: Program, jit: Jit = tj.jit) -> Iterator[str]:
    """The differences of ``program`` from eager."""
    with module_of(str(program)) as module:
        space = vars(module)
        numbers = eval(program.numbers, space)
        yield from compare(
            program.way, space["program"], program.arguments, numbers, program.grad, jit=jit
        )


def compare(
    way: str,
    program: Compiled,
    arguments: Sequence[Argument],
    numbers: Sequence[Any],
    grad: bool,
    *,
    jit: Jit = tj.jit,
) -> Iterator[str]:
    """The differences from eager of ``program`` in one of the ways, with ``numbers`` in turn."""
    seen = functools.partial(_seen, way, arguments, numbers, grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = seen(program)
        found = seen(WAYS[way].compiled(program, jit))
        if list(found) != list(expected):
            odd = found.keys() ^ expected.keys()
            told = {name: (found.get(name), expected.get(name)) for name in sorted(odd)}
            yield f"found and expected: {told}"
            return
        others = functools.cache(lambda: list(_shaken(seen, program, expected)))
        for name, value in expected.items():
            mine = found[name]
            if isinstance(value, torch.Tensor):
                yield from _unlike(name, mine, value, others)
            elif mine != value:
                yield f"{name}: {mine}, not {value}"


def _seen(
    way: str,
    arguments: Sequence[Argument],
    numbers: Sequence[Any],
    grad: bool,
    program: Compiled,
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Facts:
    """The facts that a caller sees of the calls of ``program``."""
    facts: Facts = {}
    for i, number in enumerate(numbers):
        args = [given(argument.make(i), grad) for argument in arguments]
        with _named(facts, f"call {i}") as mine:
            with WAYS[way].around(), around():
                outs = WAYS[way].call(program, *args, number)
            _note(mine, outs, args)
            _differentiate(mine, outs, args)
    return facts


@contextlib.contextmanager
def _named(facts: Facts, prefix: str) -> Iterator[Facts]:
    """Facts that are noted under ``prefix``, with the exception that ends the block."""
    mine: Facts = {}
    try:
        yield mine
    except Exception as error:
        mine["raises"] = type(error).__name__
    facts.update({f"{prefix}, {name}": value for name, value in mine.items()})


def _note(facts: Facts, outs: Sequence[torch.Tensor], args: Sequence[torch.Tensor]) -> None:
    for j, out in enumerate(outs):
        facts[f"result {j}"] = (out.dtype, tuple(out.shape), out.requires_grad)
        facts[f"result {j}, bits"] = (out.is_conj(), out.is_neg())
        facts[f"result {j}, strides"] = (out.stride(), out.storage_offset())
        facts[f"result {j}, memory"] = [_share_memory(out, other) for other in (*outs, *args)]
        facts[f"result {j}, values"] = _snapshot(out)
    facts.update({f"argument {j}": _snapshot(x) for j, x in enumerate(args)})


def _share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    same = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    return same and x.numel() > 0 and y.numel() > 0


def _differentiate(
    facts: Facts, outs: Sequence[torch.Tensor], args: Sequence[torch.Tensor]
) -> None:
    """Take gradients of all results, with other weights for each element."""
    terms = []
    for i, out in enumerate(outs):
        if out.requires_grad:
            value = out.real * 1.5 + out.imag if out.is_complex() else out
            weights = torch.arange(1.0, value.numel() + 1, dtype=torch.float64) % 5 + i + 1
            terms.append((value.double() * weights.view(value.shape)).sum())
    if terms:
        torch.stack(terms).sum().backward()
        for j, x in enumerate(args):
            facts[f"gradient {j}"] = None if x.grad is None else _snapshot(x.grad)


def _snapshot(x: torch.Tensor) -> torch.Tensor:
    return x.detach().resolve_conj().resolve_neg().clone()


def _shaken(seen: Callable[..., Facts], program: Compiled, expected: Facts) -> Iterator[Facts]:
    """Facts of runs of eager that round otherwise, where they are facts of the same kind."""
    for seed in range(SHAKES):
        found = seen(program, lambda seed=seed: Shaken(seed))
        if list(found) == list(expected):
            yield found


def _unlike(
    name: str, mine: Any, value: torch.Tensor, others: Callable[[], Sequence[Facts]]
) -> Iterator[str]:
    if not _alike(mine, value):
        yield f"{name}: {mine}, not {value}"
        return
    got, expected = _real(mine), _real(value)
    wrong = ~_near(got, expected)
    if wrong.any():
        shaken = [
            _real(f[name]) for f in others() if getattr(f[name], "shape", None) == value.shape
        ]
        wrong &= ~_Spread.of(expected, [s for s in shaken if s.dtype == expected.dtype]).has(got)
    if wrong.any():
        pairs = zip(got[wrong][:4].tolist(), expected[wrong][:4].tolist(), strict=True)
        told = ", ".join(f"{x} instead of {y}" for x, y in pairs)
        yield f"{name}: {int(wrong.sum())} elements of {value.dtype} differ: {told}"


def _alike(x: Any, y: torch.Tensor) -> bool:
    return isinstance(x, torch.Tensor) and (x.dtype, x.shape) == (y.dtype, y.shape)


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def _near(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """True for elements of ``x`` that are equal to those of ``y`` up to rounding."""
    if not x.is_floating_point():
        return x == y
    rounding, tiny = ROUNDING[x.dtype], torch.finfo(x.dtype).smallest_normal
    x, y = x.double(), y.double()
    signs = (torch.signbit(x) == torch.signbit(y)) | ((x != 0) & (y != 0))
    close = (x - y).abs() <= rounding * y.abs() + tiny
    return (x.isnan() & y.isnan()) | (signs & ((x == y) | (close & x.isfinite() & y.isfinite())))


@dataclass(frozen=True, slots=True)
class _Spread:
    """The values that eager computes where each operation is rounded otherwise."""

    expected: torch.Tensor
    error: torch.Tensor
    vague: torch.Tensor
    """True for elements that are finite or not, or of either sign, as they are rounded."""

    @classmethod
    def of(cls, expected: torch.Tensor, others: Sequence[torch.Tensor]) -> _Spread:
        error = torch.zeros(expected.shape, dtype=torch.float64)
        vague = torch.zeros(expected.shape, dtype=torch.bool)
        for other in others:
            if not expected.is_floating_point():
                vague |= other != expected
                continue
            distance = (other.double() - expected.double()).abs()
            error = torch.maximum(error, distance.nan_to_num(0, 0, 0))
            vague |= other.isfinite() != expected.isfinite()
            vague |= torch.signbit(other) != torch.signbit(expected)
        return cls(expected, error, vague)

    def has(self, found: torch.Tensor) -> torch.Tensor:
        """True for elements of ``found`` that may be among these values."""
        if not self.expected.is_floating_point():
            return self.vague
        distance = (found.double() - self.expected.double()).abs()
        return self.vague | ((self.error > 0) & (distance <= 4 * self.error))

"""Trial calls of PyTorch's kernels, to find the calls that they refuse.

Kernels refuse numbers that the data type of the result does not hold, some data types and mixtures
of them, and some arguments of some data types, such as a negative power of an integer. Fake kernels
and Inductor's kernels take them all. A pointwise call is tried on tensors of two elements: a single
one may be filled in another way. Others are tried on zeros of the shapes that they have.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tj_core.extend import (
    BoundSymbol,
    Constant,
    Context,
    NumberProxy,
    SymDim,
    TensorProxy,
    makes_views,
)
from tj_torch.extend import device_to_torch, dtype_to_torch, surroundings, tensor_proxy

__all__ = ["FILLING", "refusal"]

aten = torch.ops.aten

EXTREMES = (1 << 62, -3, 0)
"""Numbers that a symbol may be: more than small data types hold, a negative one, and no divisor."""

LOSSES = frozenset({"smooth_l1_loss", "huber_loss"})
"""Operators that compare elements, and whose kernels refuse some numbers, as pointwise ones do."""

FILLING = frozenset({
    "constant_pad_nd", "fill", "full", "full_like", "index_fill", "new_full", "scalar_tensor",
    "scatter",
})  # fmt: skip
"""Operators that convert a number to the data type of their result, beside pointwise ones."""

UNTAGGED = LOSSES | {"floor_divide"}
"""Operators to be tried as pointwise ones, without their tag."""

ALWAYS = ({"float32"}, {"float64"})
"""Data types that kernels of all operators have, where all tensors are of one of them."""


_device = functools.cache(device_to_torch)


class Given(NamedTuple):
    """A tensor among the arguments of a trial."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    value: int

    @staticmethod
    def of(p: TensorProxy) -> Given:
        """Zeros of the shape of ``p``."""
        shape = tuple(n.hint or 1 if isinstance(n, SymDim) else n for n in p.shape)
        return Given(shape, dtype_to_torch(p.dtype), _device(p.device), 0)

    @staticmethod
    def small(p: TensorProxy) -> Given:
        """Two ones, or a single one without dimensions, as ``p`` has or has not.

        No pointwise kernel refuses to divide by ones.
        """
        shape = (2,) if p.shape else ()
        return Given(shape, dtype_to_torch(p.dtype), _device(p.device), 1)

    def made(self) -> torch.Tensor:
        """The tensor."""
        return torch.full(self.shape, self.value, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Trial:
    """A call to be tried; its ``key`` tells apart 1, 1.0 and True."""

    key: Hashable
    run: Callable[..., object] = field(compare=False)
    args: tuple[Any, ...] = field(compare=False)
    kwargs: Mapping[str, Any] = field(compare=False)

    @staticmethod
    def of(run: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Trial:
        """The call ``run(*args, **kwargs)``, with `Given` in place of tensors."""
        return Trial((run, _key(args), _key([*kwargs.items()])), run, args, kwargs)


def _key(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)) and not isinstance(value, Given):
        return tuple(map(_key, value))
    return type(value), value


def refusal(call: BoundSymbol, operator: Any) -> str | None:
    """The error that PyTorch's kernel of ``operator`` raises for ``call``; None if it raises none.

    Views and random operators are not tried, nor are reductions and the like of float32 alone or
    of float64 alone, for which each has a kernel.
    """
    if torch.Tag.nondeterministic_seeded in operator.tags or makes_views(call):
        return None
    name = call.symbol.path.partition(".")[0]
    pointwise = torch.Tag.pointwise in operator.tags or name in UNTAGGED
    made = [_pointwise(call, operator) if pointwise else _others(call, operator)]
    if name in FILLING:
        made.append(_filling(call))
    return next(filter(None, map(_error, itertools.chain(*made))), None)


def _filling(call: BoundSymbol) -> Iterator[Trial]:
    out = call.flat_outs[0]
    if not isinstance(out, TensorProxy):
        return
    x = Given.small(out)._replace(shape=(2,))
    pads = call.symbol.path.startswith("constant_pad_nd")
    for value in (*call.args, *dict(call.kwargs).values()):
        for number in EXTREMES if isinstance(value, NumberProxy) else (_plain(value),):
            if isinstance(number, (int, float)):
                given = (x, [1, 1], number) if pads else (x, number)
                yield Trial.of(aten.constant_pad_nd if pads else aten.full_like, given, {})


def _pointwise(call: BoundSymbol, operator: Any) -> Iterator[Trial]:
    symbols = any(isinstance(p, NumberProxy) for p in call.flat_args)
    for number in EXTREMES if symbols else (0,):
        yield _trial(call, operator, Given.small, number)


def _others(call: BoundSymbol, operator: Any) -> Iterator[Trial]:
    if {p.dtype.name for p in call.flat_args if isinstance(p, TensorProxy)} not in ALWAYS:
        yield _trial(call, operator, Given.of, None)


def _trial(
    call: BoundSymbol,
    operator: Any,
    tensor: Callable[[TensorProxy], Given],
    number: int | None,
) -> Trial:
    """A trial of ``call`` with ``number`` in place of each symbol; None: with its hint."""

    def made(value: Any) -> Any:
        if isinstance(value, TensorProxy):
            return tensor(value)
        if isinstance(value, NumberProxy):
            hint = 1 if value.hint is None else value.hint
            return hint if number is None else number
        if isinstance(value, (list, tuple)):
            return [*map(made, value)]
        plain = _plain(value)
        return tensor(tensor_proxy("", plain)) if isinstance(plain, torch.Tensor) else plain

    return Trial.of(operator, tuple(map(made, call.args)), {k: made(v) for k, v in call.kwargs})


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Constant) else value


@functools.lru_cache(4096)
def _error(trial: Trial) -> str | None:
    """The first line of what ``trial`` raises; None if it raises nothing."""
    with surroundings(False, Context()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trial.run(*map(_made, trial.args), **{k: _made(x) for k, x in trial.kwargs.items()})
        except torch.OutOfMemoryError:
            return None
        except Exception as error:  # whatever kernels raise
            return str(error).partition("\n")[0] or type(error).__name__
    return None


def _made(value: Any) -> Any:
    if isinstance(value, Given):
        return value.made()
    return [*map(_made, value)] if isinstance(value, list) else value

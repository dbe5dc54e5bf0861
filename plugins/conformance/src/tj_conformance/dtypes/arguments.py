"""Tensors of every data type with special values in them, in many layouts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DTYPES", "LAYOUTS", "SHAPES", "Argument"]

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = ("bool", *INTEGERS, *FLOATS, "complex64", "complex128")

SHAPES = (
    *((n,) for n in (0, 1, 7, 8, 15, 16, 17, 31, 33, 64, 65)),
    (),
    *((3, 17), (2, 3), (4, 8), (5, 16), (1, 9), (9, 1), (3, 33), (33, 5), (2, 8, 8)),
    *((2, 3, 4, 5), (2, 4, 3, 3), (2, 3, 4, 5, 2)),
)
"""Shapes with sizes around those of vectors."""

FINITE = (-0.0, 0.0, 1e-40, -2.5, 2.5, 0.5, 1.5, -1.0, 1.0, 1e-3, 127.5, 255.9, -128.7, 3e9, -7e4)
SPECIAL = (math.nan, math.inf, -math.inf, *FINITE)


def _float(chance: random.Random, special: float, largest: float) -> float:
    if chance.random() < special:
        found = chance.choice(SPECIAL)
        return found / 1e5 if largest < abs(found) < math.inf else found
    return chance.gauss(0, 2) if chance.random() < 0.7 else float(chance.randint(-4, 4))


def _integer(chance: random.Random, special: float, info: torch.iinfo) -> int:
    if chance.random() < special:
        negative = (-1, -2, info.min + 1) if info.min else ()
        found: int = chance.choice((info.min, info.max, info.max - 1, 0, 1, 2, 3, 7, *negative))
        return found
    return chance.randint(-9 if info.min else 0, 9)


def _values(name: str, count: int, chance: random.Random, special: float) -> torch.Tensor:
    """A vector of ``count`` values, of which a share of ``special`` are special ones."""
    dtype: torch.dtype = getattr(torch, name)
    found: list[Any]
    if dtype is torch.bool:
        found = [chance.random() < 0.5 for _ in range(count)]
    elif dtype.is_complex:
        largest = torch.finfo(dtype).max
        parts = [_float(chance, special, largest) for _ in range(2 * count)]
        found = [complex(*parts[i : i + 2]) for i in range(0, 2 * count, 2)]
    elif dtype.is_floating_point:
        found = [_float(chance, special, torch.finfo(dtype).max) for _ in range(count)]
    else:
        found = [_integer(chance, special, torch.iinfo(dtype)) for _ in range(count)]
    return torch.tensor(found, dtype=dtype)


def _offset(x: torch.Tensor) -> torch.Tensor:
    """``x`` in memory that begins with another element, so that vectors are not aligned."""
    memory = torch.zeros(x.numel() + 3, dtype=x.dtype)
    return memory[1 : 1 + x.numel()].view(x.shape).copy_(x)


def _every_second(x: torch.Tensor) -> torch.Tensor:
    memory = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype)
    return memory[..., 1::2].copy_(x)


def _every_third_row(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros((3 * x.shape[0], *x.shape[1:]), dtype=x.dtype)[::3].copy_(x)


def _overlapping(x: torch.Tensor) -> torch.Tensor:
    memory = torch.cat([x.reshape(-1), x.new_ones(8)])
    return memory.as_strided(x.shape, [1] * x.dim())


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats.get(x.dim(), torch.contiguous_format))


LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() else x,
    "offset": _offset,
    "every second": lambda x: _every_second(x) if x.dim() else x,
    "every third row": lambda x: _every_third_row(x) if x.dim() else x,
    "expanded": lambda x: x[:1].expand(x.shape) if x.dim() and len(x) else x,
    "channels last": _channels_last,
    "conjugate": lambda x: x.conj() if x.is_complex() else x,
    "negative": lambda x: x.conj().imag if x.is_complex() else x,
    "overlapping": _overlapping,
}
"""Functions that lay a tensor out; ``negative`` makes a float of a complex number."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor to be made; ``special`` is the share of special values."""

    dtype: str
    shape: tuple[int, ...]
    layout: str
    seed: int
    special: float

    def make(self, call: int = 0) -> torch.Tensor:
        """The tensor of one of the calls: each has other values."""
        chance = random.Random(f"{self.seed} {call}")
        x = _values(self.dtype, math.prod(self.shape), chance, self.special)
        return LAYOUTS[self.layout](x.reshape(self.shape))

"""Operators for random numbers: a draw of a generator's state, and functions of that state.

``tj_nvfuser::draw(like)`` reads the state, a seed and an offset, of the generator of ``like``'s
device, and advances the generator; the state is an int64 tensor of two elements on the CPU.
``tj_nvfuser::uniform(state, like)`` and ``tj_nvfuser::normal(state, like)`` are pure functions of
it: a number for each element of ``like``. nvFuser computes them in its kernels. The implementations
here, for calls outside of regions, give other numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from tj_torch.extend import opaque_operator

__all__ = ["DRAW", "NORMAL", "UNIFORM", "computed_in"]

DRAW = "torch.ops.tj_nvfuser.draw.default"
UNIFORM = "torch.ops.tj_nvfuser.uniform.default"
NORMAL = "torch.ops.tj_nvfuser.normal.default"

# PyTorch takes multiples of 4 alone: Philox makes four numbers of each counter.
USED = 4
"""Offsets of a CUDA generator that one draw consumes: numbers per thread of the Philox stream."""

# The odd constant of SplitMix64, 2**64 by the golden ratio: neighbouring seeds are far apart.
MIXING = 0x9E3779B97F4A7C15


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Data type in which numbers for tensors of ``dtype`` are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def draw(like: torch.Tensor) -> torch.Tensor:
    """Take the seed and an offset from the device's generator, and advance it past the offset."""
    # The generator of the CPU has no offset ("CPU Generator does not use offset"): its next number
    # stands for the state.
    if like.device.type != "cuda":
        return torch.cat([torch.empty(1, dtype=torch.int64).random_(), torch.zeros(1).long()])
    generator = torch.cuda.default_generators[like.device.index]
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + USED)
    # On the CPU, where numbers of a definition are read without waiting for the device. A seed is
    # unsigned in PyTorch, and int64 ends at 2**63.
    return torch.tensor([seed - 2**64 if seed >= 2**63 else seed, offset])


def numbers(fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Make the function that fills a tensor by ``fill`` from a generator with the state's seed."""

    def made(state: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        seed, offset = state.tolist()
        generator = torch.Generator(like.device)
        generator.manual_seed((seed * MIXING + offset) % 2**63)
        return fill(torch.empty_like(like, dtype=computed_in(like.dtype)), generator=generator)

    return made


def like_state(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(2, dtype=torch.int64)


def like_numbers(state: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like, dtype=computed_in(like.dtype))


# Held by the module: PyTorch removes the operators when this object is freed.
LIBRARY = torch.library.Library("tj_nvfuser", "DEF")

register = functools.partial(opaque_operator, LIBRARY)

# By this tag tj-torch orders the call among those that draw from the generator.
register("draw(Tensor like) -> Tensor", draw, like_state, torch.Tag.nondeterministic_seeded)
register(
    "uniform(Tensor state, Tensor like) -> Tensor", numbers(torch.Tensor.uniform_), like_numbers
)
register("normal(Tensor state, Tensor like) -> Tensor", numbers(torch.Tensor.normal_), like_numbers)

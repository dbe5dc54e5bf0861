"""Frozen weights, in the layout that oneDNN multiplies fastest.

A compiled program holds its parameters while it lives (`Weights.hold`), so that their addresses
stay theirs. A weight that is no such parameter runs in PyTorch's kernel. A parameter that was
written after it was packed, as by ``load_state_dict``, is packed again: its version counter tells.
Fused optimizers and writes through ``.data`` do not count up the version. A sample of the elements
tells of most of them, and they are an error, since others may go unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from tj_core.extend import TjError

from tj_onednn import kernels
from tj_onednn.adapter import (
    PACK_CONVOLUTION,
    PACK_LINEAR,
    PACK_RECURRENT,
    RECURRENT,
    version,
)

__all__ = ["Frozen", "Weights", "convolution", "linear", "recurrent"]

Tensor = torch.Tensor

BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
"""Integer types of the same size, in which equal bits compare equal: a float NaN does not."""


@dataclass(eq=False)
class Frozen:
    """A weight, its version when last packed, and its packed forms by key.

    ``sample`` is a view of a few of its elements, as bits; ``seen`` is their value at that version.
    """

    weight: Tensor
    version: int
    packed: dict[Hashable, Tensor] = field(default_factory=dict)
    sample: Tensor = field(init=False)
    seen: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sample = _sample(self.weight)
        self.seen = self.sample.clone()

    @property
    def written(self) -> bool:
        """True if PyTorch has counted a write since it was packed."""
        return version(self.weight) != self.version

    @property
    def changed(self) -> bool:
        """True if a sampled element is another one than at that version."""
        return not torch.equal(self.sample, self.seen)

    def of(self, weight: Tensor) -> bool:
        """Check that ``weight``, which has the same address, has the same metadata."""
        # The memory of a freed tensor may be given to another one, and a view starts where its base
        # does.
        mine = self.weight
        return (mine.shape, mine.stride(), mine.dtype) == (
            weight.shape,
            weight.stride(),
            weight.dtype,
        )

    def pack(self, key: Hashable, make: Callable[[Tensor], Tensor]) -> Tensor:
        """The weight packed for ``key``, by ``make`` on first use.

        :raises TjError: if the weight was written and no write counted.
        """
        if self.written:
            self._renew()
        elif self.changed:
            raise TjError(
                f"a parameter of shape {tuple(self.weight.shape)} was written after a program with "
                "freeze=True had packed it, in a way that PyTorch does not count",
                hint="write it by copy_ or load_state_dict, or leave out freeze",
            )
        # Another thread may see a later write, and begin another dict, before this one has packed.
        forms = self.packed
        found = forms.get(key)
        if found is None:
            found = forms[key] = make(self.weight)
        return found

    def _renew(self) -> None:
        """Forget all forms, as the weight has been written."""
        # The version first: a write meanwhile is a later one.
        now = version(self.weight)
        self.packed = {}
        self.seen = self.sample.clone()
        self.version = now


def _sample(weight: Tensor) -> Tensor:
    """Elements spread over ``weight``, as bits: at most eight along each of the first two
    dimensions, the first along others.
    """
    most = (8, 8, *(1 for _ in weight.shape[2:]))
    # `or 1`: a slice with step zero raises, for a dimension without elements.
    steps = (-(-n // m) or 1 for n, m in zip(weight.shape, most, strict=False))
    found = weight[tuple(slice(None, None, step) for step in steps)]
    return found.view(BITS.get(found.dtype, found.dtype))


@dataclass
class Weights:
    """Frozen weights of living programs, by address."""

    table: WeakValueDictionary[int, Frozen] = field(default_factory=WeakValueDictionary)

    def hold(self, parameters: Iterable[Tensor]) -> Sequence[Frozen]:
        """Freeze ``parameters`` while the result lives."""
        return [found for p in parameters if (found := self.held(p)) is not None]

    def held(self, parameter: Tensor) -> Frozen | None:
        """Freeze ``parameter``; None for one without a version counter."""
        known = self.find(parameter)
        if known is not None:
            return known
        try:
            made = Frozen(parameter.detach(), version(parameter))
        # "Inference tensors do not track version counter."
        except RuntimeError:
            return None
        # Another thread may have frozen it meanwhile.
        return self.table.setdefault(parameter.data_ptr(), made)

    def find(self, weight: Tensor) -> Frozen | None:
        """The frozen form of ``weight``, or None."""
        found = self.table.get(weight.data_ptr())
        return found if found is not None and found.of(weight) else None


def linear(weights: Weights, rounds: bool = False) -> Callable[..., Tensor]:
    """Make ``torch.nn.functional.linear`` with packed weights; with ``rounds``, float32 is rounded
    to bfloat16.
    """

    def run(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        frozen = weights.find(weight)
        if frozen is None:
            # Not the parameter of the first call: a program may be called with other weights.
            return torch.nn.functional.linear(input, weight, bias)
        # oneDNN chooses a layout of the weight for a number of rows (`_reorder_linear_weight` takes
        # it).
        rows = input.numel() // input.shape[-1]
        if rounds and input.dtype == torch.float32:
            narrow = frozen.pack((rows, "narrow"), lambda w: PACK_LINEAR(w.bfloat16(), rows))
            bias = None if bias is None else bias.bfloat16()
            return kernels.linear(input.bfloat16(), narrow, bias).float()
        packed = frozen.pack(rows, lambda w: PACK_LINEAR(w, rows))
        return kernels.linear(input, packed, bias)

    return run


def convolution(weights: Weights) -> Callable[..., Tensor]:
    """Make ``torch.conv2d`` with packed weights."""

    def run(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        frozen = weights.find(weight)
        if frozen is None:
            return torch.conv2d(input, weight, *args, **kwargs)

        def pack(*how: Any) -> Tensor:
            return frozen.pack(how, lambda w: PACK_CONVOLUTION(w, *how))

        return kernels.convolution(input, weight, *args, pack=pack, **kwargs)

    return run


def recurrent(weights: Weights) -> Callable[..., Sequence[Tensor]]:
    """Make ``aten.mkldnn_rnn_layer``, in inference, with packed weights.

    PyTorch's kernel packs both in each call, which takes a sixth of the time of a layer of 256.
    """

    def run(input: Tensor, of_input: Tensor, of_state: Tensor, *rest: Any) -> Sequence[Tensor]:
        _, _, _, _, reverse, _, _, hidden, _, biased, _, batch_first, _ = rest
        how = (hidden, reverse, biased, batch_first, tuple(input.shape))
        plain = of_input.detach(), of_state.detach()
        frozen = [found for w in plain if (found := weights.find(w)) is not None]
        used = plain
        if len(frozen) == len(plain):
            first, second = frozen
            used = (
                first.pack(how, lambda _: PACK_RECURRENT(*plain, *how)[0]),
                second.pack(how, lambda _: PACK_RECURRENT(*plain, *how)[1]),
            )
        output, state, cell, _ = RECURRENT(input, *used, *rest)
        # The workspace, for a backward: of no elements by PyTorch's fake kernel, and None really.
        return output, state, cell, torch.empty(0, dtype=torch.uint8)

    return run

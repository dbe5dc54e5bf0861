"""Inputs that a call keeps for gradients that are differentiated again.

For those the program runs once more, under PyTorch's autograd. Inputs that the backward reads are
saved anyway. Others whose value the gradients depend on are kept beside. All the rest are replaced
by zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import Proxy, TensorProxy
from tj_torch.extend import device_to_torch, dtype_to_torch
from tj_torch.internal import is_sized

__all__ = ["FREED", "SavedInputs", "Sources", "sources", "written_since"]

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


@dataclass(slots=True)
class SavedInputs:
    """Inputs that one call keeps: tensors with their versions, numbers, sizes, copies.

    With ``elsewhere`` the tensors are not here but at the end of the saved tensors, after those of
    the backward: hooks on saved tensors see them there, and may move them.
    """

    tensors: list[torch.Tensor]
    versions: list[int]
    others: list[Any]
    sizes: list[tuple[torch.Size, tuple[int, ...]]]
    copies: dict[int, torch.Tensor]
    elsewhere: bool = False

    def packed(self) -> list[torch.Tensor]:
        """Take the tensors out, to be put among the saved ones."""
        found, self.tensors, self.elsewhere = self.tensors, [], True
        return found

    def freed(self) -> SavedInputs | None:
        """The state after the graph is freed: None, if there was any tensor."""
        return None if self.tensors or self.copies else self


NOTHING = SavedInputs([], [], [], [], {})
"""State of calls that keep nothing beside the saved tensors; never changed."""


@dataclass(frozen=True)
class Sources:
    """Source of each input when the program runs again, by position.

    ``saved`` maps an input to its index in the saved tensors. ``copied`` are inputs that the call
    copies; ``tensors`` other tensors that the call keeps; ``others`` numbers and objects. Inputs in
    ``zeros`` are replaced by zeros with that metadata; for those in ``sized``, the call keeps shape
    and strides.
    """

    saved: Mapping[int, int]
    copied: tuple[int, ...]
    tensors: tuple[int, ...]
    others: tuple[int, ...]
    zeros: Mapping[int, TensorProxy]
    sized: tuple[int, ...]

    @functools.cached_property
    def saves_nothing(self) -> bool:
        """True if a call has nothing to keep."""
        return not (self.copied or self.tensors or self.others or self.sized)

    def save(self, inputs: Sequence[Any], copies: dict[int, torch.Tensor]) -> SavedInputs:
        """Take from ``inputs`` what the call saves."""
        if self.saves_nothing:
            return NOTHING
        tensors = [inputs[i] for i in self.tensors]
        return SavedInputs(
            tensors,
            list(map(_version, tensors)),
            [inputs[i] for i in self.others],
            [(inputs[i].shape, inputs[i].stride()) for i in self.sized],
            {i: copies[i] for i in self.copied},
        )

    def inputs(self, saved: Sequence[torch.Tensor], own: SavedInputs | None) -> list[Any]:
        """The inputs as they were when the program ran.

        :raises RuntimeError: if one has been written by somebody else, or they have been freed.
        """
        if own is None:
            raise RuntimeError(FREED)
        found: dict[int, Any] = {i: saved[place] for i, place in self.saved.items()}
        found |= own.copies
        found |= zip(self.tensors, self._tensors(saved, own), strict=True)
        found |= zip(self.others, own.others, strict=True)
        sizes = dict(zip(self.sized, own.sizes, strict=True))
        found |= {i: _zeros(p, *sizes.get(i, (p.shape, p.strides))) for i, p in self.zeros.items()}
        return [found[i] for i in sorted(found)]

    def _tensors(self, saved: Sequence[torch.Tensor], own: SavedInputs) -> Sequence[torch.Tensor]:
        if own.elsewhere:
            return saved[len(saved) - len(self.tensors) :]
        for tensor, version in zip(own.tensors, own.versions, strict=True):
            if _version(tensor) != version:
                # As autograd for the tensors that it saves: gradients of other values would be
                # silently wrong.
                raise RuntimeError(written_since(tensor, version))
        return own.tensors


def _version(tensor: torch.Tensor) -> int:
    """Number of writes; 0 for a tensor of inference mode, which has no counter."""
    return 0 if tensor.is_inference() else tensor._version


def sources(
    inputs: Sequence[Proxy], saved: Sequence[str], depended: Collection[str], copied: Sequence[int]
) -> Sources:
    """Find the source of each of ``inputs``; those named in ``depended`` must have their value.

    ``saved`` are the names of the saved tensors, ``copied`` positions of inputs that are copied.
    """
    places = {i: saved.index(p.name) for i, p in enumerate(inputs) if p.name in saved}
    left = {i: p for i, p in enumerate(inputs) if i not in places and i not in copied}
    tensors = {i: p for i, p in left.items() if isinstance(p, TensorProxy)}
    wanted = [i for i, p in tensors.items() if p.name in depended or not _plain(p)]
    zeros = {i: p for i, p in tensors.items() if i not in wanted}
    return Sources(
        places,
        tuple(copied),
        tuple(wanted),
        tuple(i for i in left if i not in tensors),
        zeros,
        tuple(i for i, p in zeros.items() if is_sized(p)),
    )


def _plain(p: TensorProxy) -> bool:
    """Check that zeros like ``p`` can be made from its metadata.

    A tensor subclass is kept: after lowering, gradients depend on its parts, under other names.
    """
    return p.layout == "strided" and p.subclass is None and not p.flags


def _zeros(p: TensorProxy, shape: Any, strides: Any) -> torch.Tensor:
    # `torch.zeros` takes no strides.
    made = torch.empty_strided(
        shape, strides, dtype=dtype_to_torch(p.dtype), device=device_to_torch(p.device)
    )
    return made.zero_().requires_grad_(p.requires_grad)


def written_since(tensor: torch.Tensor, version: int) -> str:
    """Message of PyTorch's autograd for a tensor that was written after it was saved."""
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: {list(tensor.shape)}, which is an input of a compiled function, is at version "
        f"{tensor._version}; expected version {version} instead."
    )

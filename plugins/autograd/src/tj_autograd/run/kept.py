"""What a call keeps of its inputs, for gradients that are differentiated again.

The program runs once more for those, under PyTorch's autograd. Inputs that the backward reads are
saved anyway. Others whose value the gradients depend on are kept beside; in the place of all the
rest come zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import Proxy, TensorProxy
from tj_torch.extend import device_to_torch, dtype_to_torch, is_sized

__all__ = ["FREED", "Kept", "Sources", "sources", "written_since"]

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


@dataclass(slots=True)
class Kept:
    """What one call keeps: tensors with the versions that they had, numbers, sizes, copies.

    ``elsewhere`` says that the tensors are not here but among the saved ones, after those of the
    backward, because somebody looks at what is saved, who may put it elsewhere.
    """

    tensors: list[torch.Tensor]
    versions: list[int]
    others: list[Any]
    sizes: list[tuple[torch.Size, tuple[int, ...]]]
    copies: dict[int, torch.Tensor]
    elsewhere: bool = False

    def packed(self) -> list[torch.Tensor]:
        """The tensors, which are to be among the saved ones from now on."""
        found, self.tensors, self.elsewhere = self.tensors, [], True
        return found

    def freed(self) -> Kept | None:
        """What is left when the graph is freed: nothing, if there was any tensor."""
        return None if self.tensors or self.copies else self


@dataclass(frozen=True, slots=True)
class Sources:
    """Where each input comes from when the program runs again, by position.

    ``saved`` are inputs that are saved tensors, and which; ``copied`` those that the call keeps
    a copy of; ``tensors`` those that it keeps, ``others`` those that are no tensors. In the place
    of ``zeros`` come new tensors like these; of those in ``sized`` the call says the sizes.
    """

    saved: Mapping[int, int]
    copied: tuple[int, ...]
    tensors: tuple[int, ...]
    others: tuple[int, ...]
    zeros: Mapping[int, TensorProxy]
    sized: tuple[int, ...]

    def keep(self, inputs: Sequence[Any], copies: dict[int, torch.Tensor]) -> Kept:
        """What a call with ``inputs`` keeps."""
        tensors = [inputs[i] for i in self.tensors]
        return Kept(
            tensors,
            [t._version for t in tensors],
            [inputs[i] for i in self.others],
            [(inputs[i].shape, inputs[i].stride()) for i in self.sized],
            {i: copies[i] for i in self.copied},
        )

    def inputs(self, saved: Sequence[torch.Tensor], kept: Kept | None) -> list[Any]:
        """The inputs as they were when the program ran.

        :raises RuntimeError: if somebody else has written one, or they have been freed.
        """
        if kept is None:
            raise RuntimeError(FREED)
        found: dict[int, Any] = {i: saved[place] for i, place in self.saved.items()}
        found |= kept.copies
        found |= zip(self.tensors, self._tensors(saved, kept), strict=True)
        found |= zip(self.others, kept.others, strict=True)
        sizes = dict(zip(self.sized, kept.sizes, strict=True))
        found |= {i: _zeros(p, *sizes.get(i, (p.shape, p.strides))) for i, p in self.zeros.items()}
        return [found[i] for i in sorted(found)]

    def _tensors(self, saved: Sequence[torch.Tensor], kept: Kept) -> Sequence[torch.Tensor]:
        if kept.elsewhere:
            return saved[len(saved) - len(self.tensors) :]
        for tensor, version in zip(kept.tensors, kept.versions, strict=True):
            if tensor._version != version:
                raise RuntimeError(written_since(tensor, version))
        return kept.tensors


def sources(
    inputs: Sequence[Proxy], saved: Sequence[str], depended: Collection[str], copied: Sequence[int]
) -> Sources:
    """Where each of ``inputs`` comes from, of which the values in ``depended`` matter.

    ``saved`` are the names of the saved tensors, ``copied`` inputs that are copied.
    """
    places = {i: saved.index(p.name) for i, p in enumerate(inputs) if p.name in saved}
    left = {i: p for i, p in enumerate(inputs) if i not in places and i not in copied}
    tensors = {i: p for i, p in left.items() if isinstance(p, TensorProxy)}
    kept = [i for i, p in tensors.items() if p.name in depended or not _plain(p)]
    zeros = {i: p for i, p in tensors.items() if i not in kept}
    return Sources(
        places,
        tuple(copied),
        tuple(kept),
        tuple(i for i in left if i not in tensors),
        zeros,
        tuple(i for i, p in zeros.items() if is_sized(p)),
    )


def _plain(p: TensorProxy) -> bool:
    """Whether zeros like ``p`` can be made of what is said of it.

    Gradients that were lowered depend on the parts of a subclass, by other names than its own: it
    is kept.
    """
    return p.layout == "strided" and p.subclass is None and not p.flags


def _zeros(p: TensorProxy, shape: Any, strides: Any) -> torch.Tensor:
    made = torch.empty_strided(
        shape, strides, dtype=dtype_to_torch(p.dtype), device=device_to_torch(p.device)
    )
    return made.zero_().requires_grad_(p.requires_grad)


def written_since(tensor: torch.Tensor, version: int) -> str:
    """What PyTorch's autograd says of a tensor that has been written since it was saved."""
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: {list(tensor.shape)}, which is an input of a compiled function, is at version "
        f"{tensor._version}; expected version {version} instead."
    )

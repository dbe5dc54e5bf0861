"""Names of the tensors that a program owns: as in the module's state dict, else as in its code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import PackageError

__all__ = ["State", "readable"]


@dataclass
class State:
    """The tensors that a program reads beside its arguments, by name.

    ``known`` are the names, by identity, that the exported module has for its parameters and
    buffers; tied ones have several. ``kept`` are the names in the module's state dict.
    """

    known: Mapping[int, tuple[str, ...]]
    kept: frozenset[str]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, fn: Any) -> State:
        """Of the module ``fn``; of another callable, nothing is known."""
        if not isinstance(fn, torch.nn.Module):
            return cls({}, frozenset())
        known: dict[int, tuple[str, ...]] = {}
        named = [*fn.named_parameters(remove_duplicate=False)]
        for name, tensor in [*named, *fn.named_buffers(remove_duplicate=False)]:
            known[id(tensor)] = (*known.get(id(tensor), ()), name)
        return cls(known, frozenset(fn.state_dict()))

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name of a tensor that was added; None for another."""
        return next((name for name, known in self.tensors.items() if known is tensor), None)

    def add(self, tensor: torch.Tensor, source: str) -> str:
        """Add a tensor, which the program reads from the expression ``source``; return its name."""
        name = self.name_of(tensor)
        if name is None:
            name = self.known.get(id(tensor), (readable(source),))[0]
            while name in self.tensors:
                name += "_"
            self.tensors[name] = tensor
        return name

    def check_apart(self) -> None:
        """Check that no two tensors share memory, which a loaded package gives each for itself.

        :raises PackageError: if two do: the program may write to one, and read the other.
        """
        seen: dict[int, str] = {}
        for name, tensor in self.tensors.items():
            if not tensor.numel():
                continue
            other = seen.setdefault(tensor.untyped_storage().data_ptr(), name)
            if other != name:
                raise PackageError(f"{other} and {name} share memory, and the program writes")

    def facts(self, training: bool) -> dict[str, Any]:
        """For the manifest: names in the state dict, the device and more, of each tensor."""
        return {
            name: {
                "names": [n for n in self.known.get(id(t), ()) if n in self.kept],
                "device": str(t.device),
                "requires_grad": training and t.requires_grad,
            }
            for name, t in self.tensors.items()
        }

    def trained(self) -> list[str]:
        """The tensors that get gradients, in the module's order, that of an optimizer's state."""
        places = {key: place for place, key in enumerate(self.known)}
        found = [name for name, tensor in self.tensors.items() if tensor.requires_grad]
        return sorted(found, key=lambda name: places.get(id(self.tensors[name]), len(places)))

    def unused(self) -> list[str]:
        """The names in the module's state dict that the program does not read."""
        used = {n for t in self.tensors.values() for n in self.known.get(id(t), ())}
        return sorted(self.kept - used)


def readable(source: str) -> str:
    """``L['fn']._modules['a']._parameters['b']`` as ``a.b``."""
    text = re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", source)
    return text.removeprefix("L['fn']").lstrip(".")

"""An architecture: how a small network of it is made, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tj_suites.architectures.small import small

if TYPE_CHECKING:
    from tj_suites.packages import Network

__all__ = ["Architecture", "of_network", "of_transformers"]

Batch = Callable[[], dict[str, Any]]
_INSTALLS_HOOKS = "_hook_installation_lock"
"""A lock that many networks of transformers take in their first call; Dynamo enters no lock."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network with random weights, always the same, and keyword arguments of a call of it.

    ``group`` is its purpose, ``package`` its distribution. ``breaks`` are parts of the warnings
    with which tj leaves a part of the network to eager. ``rounds`` marks networks with other
    formulas while a compiler, tj or not, is at work.
    """

    package: str
    group: str
    name: str
    build: Callable[[], nn.Module]
    batch: Batch
    breaks: tuple[str, ...] = ()
    rounds: bool = False

    def made(self) -> nn.Module:
        """The network."""
        torch.manual_seed(0)
        return self.build()

    def given(self, seed: int) -> dict[str, Any]:
        """The arguments of a call."""
        torch.manual_seed(seed)
        return self.batch()

    @property
    def title(self) -> str:
        """Name of the network, with its package."""
        return f"{self.package} {self.name}"


@dataclass(frozen=True, slots=True)
class of_transformers:
    """Architectures of transformers in one group: of one class, called with one batch."""

    group: str
    head: str
    batch: Batch
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, name: str, *breaks: str, **changes: Any) -> Architecture:
        """The architecture that transformers calls ``name``, with ``changes`` of its sizes."""

        def build() -> nn.Module:
            import transformers

            config = small(transformers.CONFIG_MAPPING[name], {**self.changes, **changes})
            head = getattr(transformers, self.head)
            model = head.from_config(config) if self.head.startswith("AutoModel") else head(config)
            assert isinstance(model, nn.Module)
            return model

        left = (_INSTALLS_HOOKS, *breaks)
        return Architecture("transformers", self.group, name, build, self.batch, left)


def of_network(package: str, group: str, network: Network) -> Architecture:
    """A network of ``package``, the name that it is imported by; arguments are given by place."""

    def build() -> nn.Module:
        return _ByPlace(network.build())

    def batch() -> dict[str, Any]:
        return {f"x{i}": given for i, given in enumerate(network.batch())}

    return Architecture(package, group, network.name, build, batch, network.breaks)


class _ByPlace(nn.Module):
    """A network that is called with names of its arguments, in order."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **given: Any) -> Any:
        return self.network(*given.values())

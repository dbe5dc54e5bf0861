"""kornia: filters, augmentations, colours, geometry and losses, most of them without parameters."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tj_suites.packages.network import Network, Package, module

__all__ = ["KORNIA"]


def pictures() -> tuple[torch.Tensor, ...]:
    """Pictures between zero and one: float32 [2, 3, 16, 16]."""
    return (torch.rand(2, 3, 16, 16),)


def pairs() -> tuple[torch.Tensor, ...]:
    """Two of `pictures`."""
    return *pictures(), *pictures()


def skewed() -> tuple[torch.Tensor, ...]:
    """Pictures, and homographies near to the identity: float32 [2, 3, 3]."""
    return *pictures(), torch.eye(3) + 0.01 * torch.rand(2, 3, 3)


class Calls(nn.Module):
    """A function of kornia as a module."""

    def __init__(self, name: str, *more: Any) -> None:
        super().__init__()
        home, _, function = name.rpartition(".")
        self.function = getattr(importlib.import_module(home), function)
        self.more = more

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args, *self.more)


def sequential() -> nn.Module:
    """A chain of augmentations, of which each keeps what it drew."""
    a = importlib.import_module("kornia.augmentation")
    normalize = a.Normalize(torch.full((3,), 0.4), torch.full((3,), 0.3))
    parts = a.RandomHorizontalFlip(p=0.5), a.RandomRotation(20.0, p=1.0), normalize
    chain: nn.Module = a.AugmentationSequential(*parts, data_keys=["input"])
    return chain


def augmentation(name: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """An augmentation that is applied to all pictures."""
    return module("kornia.augmentation", name)(*args, p=1.0, **kwargs)


_filter = "kornia.filters"
_BRANCH = "data-dependent"

KORNIA = Package(
    "kornia",
    "0.9.0",
    (
        Network("GaussianBlur2d", module(_filter, "GaussianBlur2d")((3, 3), (1.5, 1.5)), pictures),
        Network("Sobel", module(_filter, "Sobel")(), pictures),
        Network("MedianBlur", module(_filter, "MedianBlur")((3, 3)), pictures),
        Network("UnsharpMask", module(_filter, "UnsharpMask")((3, 3), (1.5, 1.5)), pictures),
        Network("Canny", module(_filter, "Canny")(), pictures, breaks=(_BRANCH,)),
        Network("rgb_to_lab", lambda: Calls("kornia.color.rgb_to_lab"), pictures),
        Network(
            "warp_perspective",
            lambda: Calls("kornia.geometry.transform.warp_perspective", (16, 16)),
            skewed,
        ),
        Network("SSIMLoss", module("kornia.losses", "SSIMLoss")(5), pairs),
        Network(
            "RandomAffine", augmentation("RandomAffine", 30.0, (0.1, 0.1), (0.8, 1.2)), pictures
        ),
        Network("RandomPerspective", augmentation("RandomPerspective", 0.5), pictures),
        Network("RandomErasing", augmentation("RandomErasing"), pictures),
        Network(
            "RandomGaussianBlur", augmentation("RandomGaussianBlur", (3, 3), (0.1, 2.0)), pictures
        ),
        Network("AugmentationSequential", sequential, pictures),
        Network(
            "ColorJitter",
            augmentation("ColorJitter", 0.2, 0.2, 0.2, 0.2),
            pictures,
            breaks=(_BRANCH,),
        ),
        Network(
            "RandomResizedCrop",
            augmentation("RandomResizedCrop", (8, 8)),
            pictures,
            compiled="resizes crops by another algorithm where it sees a compiler",
        ),
    ),
)

"""Networks that torchao converts: float8 training, and weights held in fewer bits."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tj_suites.packages.network import Network, Package

__all__ = ["TORCHAO"]

WIDTH = 32


def rows() -> tuple[torch.Tensor, ...]:
    """One batch: f32 [16, WIDTH]."""
    return (torch.randn(16, WIDTH),)


def mlp() -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 16))


def float8(**options: Any) -> Callable[[], nn.Module]:
    """Linear layers whose products are computed in float8, forward and backward."""

    def build() -> nn.Module:
        package = importlib.import_module("torchao.float8")
        config = package.Float8LinearConfig(**options)
        converted: nn.Module = package.convert_to_float8_training(mlp(), config=config)
        return converted

    return build


def weights(config: str) -> Callable[[], nn.Module]:
    """Linear layers whose weights are tensors of a subclass, and are not trained."""

    def build() -> nn.Module:
        package = importlib.import_module("torchao.quantization")
        module = mlp().eval()
        package.quantize_(module, getattr(package, config)())
        return module

    return build


class Blocks(nn.Module):
    """A product of tensors in MX (float8 elements, one scale for each 32), beside trained weights.

    The tensors in MX are not trained: torchao differentiates what is around them.
    """

    def __init__(self) -> None:
        super().__init__()
        package = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
        self.in_blocks = package.MXTensor.to_mx
        weight = self.in_blocks(torch.randn(16, WIDTH).bfloat16(), torch.float8_e4m3fn, 32)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.beside = nn.Linear(WIDTH, 16)

    def forward(self, x: torch.Tensor) -> Any:
        rows = self.in_blocks(x.bfloat16(), torch.float8_e4m3fn, 32)
        return torch.mm(rows, self.weight.t()) + self.beside(x)


TORCHAO = Package(
    "torchao",
    "0.18.0",
    (
        Network("float8 training", float8(), rows),
        Network("float8 training, emulated", float8(emulate=True), rows),
        Network("weights of int8", weights("Int8WeightOnlyConfig"), rows),
        Network("weights of float8", weights("Float8WeightOnlyConfig"), rows),
        Network("int8 products", weights("Int8DynamicActivationInt8WeightConfig"), rows),
        Network("products in MX", Blocks, rows),
    ),
)

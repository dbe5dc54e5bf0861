"""diffusers: what predicts noise, and what makes pictures of latents."""

from __future__ import annotations

from typing import Any

import torch

from tj_suites.packages.network import Network, Package, module

__all__ = ["DIFFUSERS"]


def picture() -> tuple[torch.Tensor, ...]:
    """A picture: float32 [1, 3, 16, 16]."""
    return (torch.randn(1, 3, 16, 16),)


def noisy() -> tuple[torch.Tensor, ...]:
    """A picture, and how far it has gone to noise."""
    return *picture(), torch.tensor([7])


def prompted() -> tuple[torch.Tensor, ...]:
    """A noisy picture, and an embedded text: float32 [1, 4, 8]."""
    return *noisy(), torch.randn(1, 4, 8)


def latents() -> tuple[torch.Tensor, ...]:
    """Latents: float32 [2, 4, 8, 8]; steps and classes of both."""
    return torch.randn(2, 4, 8, 8), torch.tensor([3, 5]), torch.tensor([1, 2])


_SIZES: dict[str, Any] = {
    "sample_size": 16,
    "in_channels": 3,
    "out_channels": 3,
    "layers_per_block": 1,
    "block_out_channels": (8, 16),
    "norm_num_groups": 4,
}
_AUTOENCODER = _SIZES | {
    "latent_channels": 2,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}


def _unet(attention: str) -> dict[str, Any]:
    """Sizes of a UNet whose lower half looks around by ``attention``."""
    return _SIZES | {
        "attention_head_dim": 4,
        "down_block_types": ("DownBlock2D", f"{attention}DownBlock2D"),
        "up_block_types": (f"{attention}UpBlock2D", "UpBlock2D"),
    }


DIFFUSERS = Package(
    "diffusers",
    "0.42.1",
    (
        Network("UNet2DModel", module("diffusers", "UNet2DModel")(**_unet("Attn")), noisy),
        Network("AutoencoderKL", module("diffusers", "AutoencoderKL")(**_AUTOENCODER), picture),
        Network(
            "UNet2DConditionModel",
            module("diffusers", "UNet2DConditionModel")(
                cross_attention_dim=8, **_unet("CrossAttn")
            ),
            prompted,
        ),
        Network(
            "DiTTransformer2DModel",
            module("diffusers", "DiTTransformer2DModel")(
                num_attention_heads=2,
                attention_head_dim=8,
                num_layers=1,
                sample_size=8,
                num_embeds_ada_norm=10,
                norm_num_groups=4,
            ),
            latents,
        ),
    ),
)

"""Networks that look at pictures: timm's, and those of segmentation-models-pytorch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tj_suites.packages.network import Network, Package, module

__all__ = ["SEGMENTATION", "TIMM"]

Batch = Callable[[], tuple[torch.Tensor, ...]]


def pictures(size: int = 32, count: int = 2) -> Batch:
    """Pictures: float32 [count, 3, size, size]."""
    return lambda: (torch.randn(count, 3, size, size),)


_create = module("timm", "create_model")
_SMALL = {"num_classes": 5}
_PATCHES = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
_WINDOWS = {"img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (2, 2)} | {
    "num_heads": (2, 4)
}

TIMM = Package(
    "timm",
    "1.0.31",
    (
        Network("resnet", _create("test_resnet", **_SMALL), pictures()),
        Network(
            "vit",
            _create(
                "vit_tiny_patch16_224", drop_rate=0.1, drop_path_rate=0.1, **_PATCHES, **_SMALL
            ),
            pictures(),
        ),
        Network(
            "deit", _create("deit_tiny_distilled_patch16_224", **_PATCHES, **_SMALL), pictures()
        ),
        Network("beit", _create("beit_base_patch16_224", **_PATCHES, **_SMALL), pictures()),
        Network("eva", _create("eva02_tiny_patch14_224", **_PATCHES, **_SMALL), pictures()),
        Network(
            "convnext",
            _create(
                "convnext_atto", depths=(1,) * 4, dims=(8, 16, 24, 32), drop_path_rate=0.1, **_SMALL
            ),
            pictures(),
        ),
        Network("swin", _create("swin_tiny_patch4_window7_224", **_WINDOWS, **_SMALL), pictures()),
        Network("swin v2", _create("swinv2_tiny_window8_256", **_WINDOWS, **_SMALL), pictures()),
        Network("efficientnet", _create("test_efficientnet", **_SMALL), pictures()),
        Network("mobilenet v3", _create("mobilenetv3_small_050", **_SMALL), pictures()),
        Network(
            "mixer",
            _create("mixer_s32_224", img_size=32, **_SMALL),
            pictures(),
        ),
        Network("regnet", _create("regnetx_002", **_SMALL), pictures()),
        Network("nfnet", _create("test_nfnet", **_SMALL), pictures()),
        Network(
            "densenet",
            _create("densenet121", growth_rate=8, block_config=(2,) * 4, **_SMALL),
            pictures(),
        ),
        Network(
            "sequencer",
            _create(
                "sequencer2d_s",
                img_size=32,
                layers=(1,) * 4,
                embed_dims=(24,) * 4,
                hidden_sizes=(12,) * 4,
                **_SMALL,
            ),
            pictures(),
        ),
    ),
)

_segment = "segmentation_models_pytorch"
_DECODER = {"encoder_weights": None, "classes": 2}

SEGMENTATION = Package(
    "segmentation-models-pytorch",
    "0.6.0",
    (
        Network(
            "Unet",
            module(_segment, "Unet")(
                "resnet18", encoder_depth=3, decoder_channels=(16, 8, 8), **_DECODER
            ),
            pictures(),
        ),
        Network(
            "FPN",
            module(_segment, "FPN")(
                "resnet18",
                decoder_pyramid_channels=16,
                decoder_segmentation_channels=32,
                **_DECODER,
            ),
            pictures(),
        ),
        Network(
            "DeepLabV3+",
            module(_segment, "DeepLabV3Plus")("resnet18", decoder_channels=16, **_DECODER),
            pictures(64),
        ),
    ),
)

"""Architectures of timm, small: convolutions, transformers on patches, and what lies between."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tj_suites.architectures.architecture import Architecture, of_network
from tj_suites.packages import Network, module, pictures

__all__ = ["TIMM"]


PATCHES: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 3,
}
WINDOWS: dict[str, Any] = {"img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (1, 1)}
WINDOWS |= {"num_heads": (2, 4)}
STAGES: dict[str, Any] = {"depths": (1,) * 4, "dims": (8, 16, 24, 32)}


def of_timm(name: str, pixels: int = 32, **sizes: Any) -> Architecture:
    """A network of timm, for pictures of so many ``pixels`` in height and width."""
    build = module("timm", "create_model")(name, num_classes=5, **sizes)
    return of_network("timm", "vision", Network(name, build, pictures(pixels)))


of_stages = functools.partial(of_timm, pixels=64)
"""A network that halves pictures five times: its last batch norms see eight values per channel.

On pictures of 32 by 32 they would see two, whose norm is 1 and -1 however near they are, so that
the sign of a difference decides that may be rounding.
"""


of_smooth = functools.partial(of_stages, act_layer=torch.nn.SiLU)
"""A network of stages whose rectifiers are smooth.

Of many thousand arguments of a rectifier some are within rounding of its kinks, where the gradient
jumps: there one element's gradient is all of the tangent or none, in eager as in a region.
"""


TIMM: tuple[Architecture, ...] = (
    of_timm("vit_tiny_patch16_224", **PATCHES),
    of_timm("deit_tiny_distilled_patch16_224", **PATCHES),
    of_timm("deit3_small_patch16_224", **PATCHES),
    of_timm("beit_base_patch16_224", **PATCHES),
    of_timm("beitv2_base_patch16_224", **PATCHES),
    of_timm("eva02_tiny_patch14_224", **PATCHES),
    of_timm("cait_xxs24_224", **PATCHES),
    of_timm("xcit_nano_12_p16_224", **PATCHES),
    of_timm("swin_tiny_patch4_window7_224", **WINDOWS),
    of_timm("swinv2_tiny_window8_256", **WINDOWS),
    of_timm("convnext_atto", **STAGES),
    of_timm("convnextv2_atto", **STAGES),
    of_timm("poolformer_s12"),
    of_timm("test_resnet"),
    of_stages("test_efficientnet"),
    of_timm("test_vit"),
    of_timm("test_byobnet"),
    of_timm("test_convnext"),
    of_timm("test_nfnet"),
    of_timm("test_mambaout"),
    of_timm("resnet10t"),
    of_timm("edgenext_xx_small"),
    *map(of_smooth, ("mobilenetv1_100", "mobilenetv2_050", "mobilenetv4_conv_small")),
    *map(of_smooth, ("mnasnet_small",)),
    *map(of_stages, ("mobilenetv3_small_050", "lcnet_050", "tinynet_e")),
    *map(of_stages, ("ghostnet_050", "semnasnet_075", "hardcorenas_a", "spnasnet_100")),
    *map(of_stages, ("skresnet18", "seresnet18", "regnetx_002", "regnety_002")),
    *map(of_stages, ("densenet121", "dla46_c", "repvgg_a0", "mobileone_s0")),
    *map(of_stages, ("rexnet_100", "fastvit_t8", "inception_next_atto", "mobilevit_xxs")),
)
"""Architectures of timm."""

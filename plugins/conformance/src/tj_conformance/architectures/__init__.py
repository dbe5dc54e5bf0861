"""Architectures that others wrote, with random weights, in both configurations.

``python -m tj_conformance.architectures`` prints a table.
"""

from __future__ import annotations

from tj_conformance.architectures.architecture import Architecture, of_network
from tj_conformance.architectures.running import MODES, Report, compared
from tj_conformance.architectures.timm import TIMM
from tj_conformance.architectures.transformers import TRANSFORMERS
from tj_conformance.packages import DIFFUSERS, GEOMETRIC, SEGMENTATION

__all__ = ["ARCHITECTURES", "MODES", "Architecture", "Report", "compared"]

GROUPS = {"diffusion": DIFFUSERS, "graphs": GEOMETRIC, "segmentation": SEGMENTATION}
"""Packages by the purpose of their networks; `tj_conformance.packages` has them, too."""

ARCHITECTURES: tuple[Architecture, ...] = (
    *TRANSFORMERS,
    *TIMM,
    *(
        of_network(package.name.replace("-", "_"), group, network)
        for group, package in GROUPS.items()
        for network in package.networks
    ),
)
"""The architectures that are tried."""

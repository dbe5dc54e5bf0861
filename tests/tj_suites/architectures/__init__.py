"""Architectures that others wrote, with random weights, in both configurations.

``python tests/tj_suites architectures`` prints a table.
"""

from __future__ import annotations

from tj_suites.architectures.architecture import Architecture, of_network
from tj_suites.architectures.running import MODES, Report, compared
from tj_suites.architectures.timm import TIMM
from tj_suites.architectures.transformers import TRANSFORMERS
from tj_suites.packages import DIFFUSERS, GEOMETRIC, SEGMENTATION

__all__ = ["ARCHITECTURES", "MODES", "Architecture", "Report", "compared"]

GROUPS = {"diffusion": DIFFUSERS, "graphs": GEOMETRIC, "segmentation": SEGMENTATION}
"""Packages by the purpose of their networks; `tj_suites.packages` has them, too."""

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

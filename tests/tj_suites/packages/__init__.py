"""Packages that others wrote for PyTorch, on which tj is tried: `tox run -e packages`."""

from __future__ import annotations

from tj_suites.packages.diffusion import DIFFUSERS
from tj_suites.packages.graphs import GEOMETRIC
from tj_suites.packages.network import Network, Package, Report, module, train_twins
from tj_suites.packages.pictures import SEGMENTATION, TIMM, pictures
from tj_suites.packages.quantized import TORCHAO
from tj_suites.packages.sequences import X_TRANSFORMERS
from tj_suites.packages.vision import KORNIA

__all__ = [
    "DIFFUSERS",
    "GEOMETRIC",
    "PACKAGES",
    "SEGMENTATION",
    "Network",
    "Package",
    "Report",
    "module",
    "pictures",
    "table",
    "train_twins",
]

PACKAGES = (TIMM, SEGMENTATION, GEOMETRIC, KORNIA, X_TRANSFORMERS, DIFFUSERS, TORCHAO)
"""The packages whose networks are tried."""


def table() -> str:
    """The packages with their networks, and what is left to eager."""
    return "\n".join(line for package in PACKAGES for line in _lines(package))


def _lines(package: Package) -> list[str]:
    return [
        f"{package.name} {package.version}",
        *(f"    {network.name}{_remark(network)}" for network in package.networks),
    ]


def _remark(network: Network) -> str:
    if network.compiled:
        return f": {network.compiled}"
    return f": graph break: {', '.join(network.breaks)}" if network.breaks else ""

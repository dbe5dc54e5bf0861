"""A hundred architectures that others wrote, with random weights, in both configurations.

``python -m tj_conformance.architectures`` prints a table.
"""

from __future__ import annotations

from tj_conformance.architectures.architecture import Architecture
from tj_conformance.architectures.running import MODES, Report, compared
from tj_conformance.architectures.timm import TIMM
from tj_conformance.architectures.transformers import TRANSFORMERS

__all__ = ["ARCHITECTURES", "MODES", "Architecture", "Report", "compared"]

ARCHITECTURES: tuple[Architecture, ...] = (*TRANSFORMERS, *TIMM)
"""The architectures that are tried."""

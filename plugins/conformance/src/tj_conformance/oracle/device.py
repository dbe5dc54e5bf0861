"""The device that samples and models are made on."""

from __future__ import annotations

import torch

__all__ = ["device"]


def device() -> str:
    """Type of PyTorch's default device: ``cpu``, or what a ``with torch.device(...)`` says."""
    return torch.get_default_device().type

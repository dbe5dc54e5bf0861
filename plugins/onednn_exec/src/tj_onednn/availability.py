"""Test for a PyTorch that is built with oneDNN; imports nothing of tj-torch."""

from __future__ import annotations

import torch

__all__ = ["unavailable"]


def unavailable() -> str | None:
    """Reason that there are no operators of oneDNN here; None if there are."""
    available = torch.backends.mkldnn.is_available()
    return None if available else "this PyTorch is built without oneDNN"

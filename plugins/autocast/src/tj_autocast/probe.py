"""Probe of PyTorch's autocast: whether casts made under ``no_grad`` stand in for others."""

from __future__ import annotations

import torch

__all__ = ["keeps_casts_without_gradients"]


def keeps_casts_without_gradients() -> bool:
    """Test if autocast reuses a cast made under ``no_grad`` where gradients are on.

    PyTorch up to 2.10 does, and the parameter loses its gradient; casts made by tj do not.
    """
    with (
        # In the caller's inference mode nothing would require a gradient.
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", torch.bfloat16),
    ):
        x, weight = torch.ones(1, 1), torch.ones(1, 1, requires_grad=True)
        with torch.no_grad():
            torch.nn.functional.linear(x, weight)
        return not torch.nn.functional.linear(x, weight).requires_grad

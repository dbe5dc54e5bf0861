"""What PyTorch's autocast remembers of its casts of parameters."""

from __future__ import annotations

import torch

__all__ = ["keeps_casts_without_gradients"]


def keeps_casts_without_gradients() -> bool:
    """Whether a cast that is made under ``no_grad`` stands in for one with gradients.

    So it is up to PyTorch 2.10, and a parameter loses its gradient by it; tj's casts do not.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", torch.bfloat16),
    ):
        x, weight = torch.ones(1, 1), torch.ones(1, 1, requires_grad=True)
        with torch.no_grad():
            torch.nn.functional.linear(x, weight)
        return not torch.nn.functional.linear(x, weight).requires_grad

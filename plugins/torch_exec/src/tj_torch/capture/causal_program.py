"""Program captured in place of the function by which PyTorch's transformers look at a mask."""

from __future__ import annotations

import torch

__all__ = ["NotCausalError", "is_causal_mask"]


class NotCausalError(ValueError):
    """An error for a mask that is not causal: no caller sees it."""


def is_causal_mask(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """Tell whether ``mask``, of attention of ``size`` tokens, is causal, if ``is_causal`` does not.

    :raises NotCausalError: if only its elements show that it is not.
    """
    if is_causal is not None or mask is None:
        return is_causal is True
    tokens = size if size is not None else mask.size(-2)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(
        tokens, device=mask.device, dtype=mask.dtype
    )
    if mask.size() != causal.size():
        return False
    if not (mask == causal).all():
        raise NotCausalError
    return True

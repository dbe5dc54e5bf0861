"""Programs captured in place of functions of PyTorch's that decide on data.

Each takes one way, and raises for data for which PyTorch takes the other one. The user's program
runs as it is then (`tj_torch.capture.dynamo.refused_data`), with the function of PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "OtherwiseError",
    "broadcast_shapes",
    "is_causal_mask",
    "is_definite",
    "is_semidefinite",
    "is_symmetric",
]


class OtherwiseError(ValueError):
    """An error for data for which PyTorch decides otherwise: no caller sees it."""


def is_causal_mask(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """Tell whether ``mask``, of attention of ``size`` tokens, is causal, if ``is_causal`` does not.

    For `torch.nn.modules.transformer._detect_is_causal_mask`.

    :raises OtherwiseError: if only its elements show that it is not.
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
        raise OtherwiseError
    return True


def is_symmetric(constraint: Any, value: torch.Tensor) -> torch.Tensor:
    """Tell which matrices of ``value`` are symmetric, for `constraints.symmetric.check`."""
    if value.shape[-2] != value.shape[-1]:
        return torch.full(value.shape[:-2], False, dtype=torch.bool, device=value.device)
    same: torch.Tensor = torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)
    return same


def is_semidefinite(constraint: Any, value: torch.Tensor) -> torch.Tensor:
    """Tell which matrices are semidefinite, for `constraints.positive_semidefinite.check`.

    :raises OtherwiseError: if one is not symmetric.
    """
    if not is_symmetric(constraint, value).all():
        raise OtherwiseError
    found: torch.Tensor = torch.linalg.eigvalsh(value).ge(0).all(-1)
    return found


def is_definite(constraint: Any, value: torch.Tensor) -> torch.Tensor:
    """Tell which matrices are positive definite, for `constraints.positive_definite.check`.

    :raises OtherwiseError: if one is not symmetric.
    """
    if not is_symmetric(constraint, value).all():
        raise OtherwiseError
    found: torch.Tensor = torch.linalg.cholesky_ex(value).info.eq(0)
    return found


def broadcast_shapes(*shapes: Any) -> torch.Size:
    """Broadcast ``shapes``, numbers or sequences of them, as `torch.broadcast_shapes` does.

    :raises OtherwiseError: where PyTorch raises, with a text of its own.
    """
    sequences = [(shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes]
    found = [1] * max([0, *[len(sizes) for sizes in sequences]])
    for sizes in sequences:
        for place in range(-len(sizes), 0):
            size = sizes[place]
            if size < 0:
                raise OtherwiseError
            if size == 1 or size == found[place]:
                continue
            if found[place] != 1:
                raise OtherwiseError
            found[place] = size
    return torch.Size(found)

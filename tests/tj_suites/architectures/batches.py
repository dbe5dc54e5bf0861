"""Arguments of architectures, by purpose."""

from __future__ import annotations

from typing import Any

import torch

from tj_suites.architectures.small import VOCABULARY

__all__ = ["captioned", "heard", "looked_at", "read", "spectrogram", "translated"]

ROWS, LENGTH = 2, 16
CLASSES = (1, 3)


def _tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (ROWS, length))


def read() -> dict[str, Any]:
    """Token ids, which are the labels too: int64 [2, 16]."""
    tokens = _tokens()
    return {"input_ids": tokens, "labels": tokens}


def translated() -> dict[str, Any]:
    """Token ids: int64 [2, 16]; labels half as long."""
    return {"input_ids": _tokens(), "labels": _tokens(LENGTH // 2)}


def looked_at() -> dict[str, Any]:
    """Pictures: float32 [2, 3, 32, 32]; labels: int64 [2]."""
    return {"pixel_values": torch.randn(ROWS, 3, 32, 32), "labels": torch.tensor(CLASSES)}


def heard() -> dict[str, Any]:
    """Sound: float32 [2, 1600]; labels: int64 [2]."""
    return {"input_values": torch.randn(ROWS, 1600), "labels": torch.tensor(CLASSES)}


def spectrogram() -> dict[str, Any]:
    """Spectrograms: float32 [2, 64, 8]; token ids as labels: int64 [2, 8]."""
    return {"input_features": torch.randn(ROWS, 64, 8), "labels": _tokens(LENGTH // 2)}


def captioned() -> dict[str, Any]:
    """Token ids: int64 [2, 16]; pictures: float32 [2, 3, 32, 32]."""
    pictures = torch.randn(ROWS, 3, 32, 32)
    return {"input_ids": _tokens(), "pixel_values": pictures, "return_loss": True}

"""Operators of torchvision, where its build needs another one of PyTorch."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

import torch

__all__ = ["declare_what_torchvision_lacks"]

LACKING = ("nms", "qnms")
"""Operators that torchvision gives a fake kernel to, at import."""


@functools.cache
def declare_what_torchvision_lacks() -> torch.library.Library | None:
    """Declare `LACKING`, where torchvision's own operators need another build of PyTorch.

    Then its import would fail; the packages use its Python code only.
    """
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    if any(map(_loads, Path(found.origin).parent.glob("_C*.so"))):  # newer ones: `_C_stable`
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in LACKING:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _loads(path: Path) -> bool:
    try:
        torch.ops.load_library(path)
    except OSError:
        return False
    return True

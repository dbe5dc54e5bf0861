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
    try:
        torch.ops.load_library(Path(found.origin).with_name("_C.so"))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in LACKING:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None

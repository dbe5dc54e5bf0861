"""A program trained once under tj and once in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch

__all__ = ["trained"]


def trained(f: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Any:
    """Jit ``f`` with ``options``, and train it once on copies of ``args``; return the jitted
    program.

    :raises AssertionError: if a gradient is not eager's, bit for bit.
    """
    jitted = tj.jit(f, **options)
    grads = []
    for fn in (jitted, f):
        leaves = [a.clone().requires_grad_() for a in args]
        torch.manual_seed(0)
        fn(*leaves).backward()
        grads.append([a.grad for a in leaves])
    for mine, theirs in zip(*grads, strict=True):
        assert torch.equal(mine, theirs)
    return jitted

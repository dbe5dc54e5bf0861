"""Programs for many sizes, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Program = Callable[[torch.Tensor, torch.Tensor], Any]


SIZES = (5, 7, 4, 12)


def gradients(f: Program, n: int, which: Sequence[int] | None = None) -> list[torch.Tensor | None]:
    """The results and gradients of ``f``; ``which`` are the outputs that have a tangent."""
    torch.manual_seed(n)
    x, w = torch.randn(n, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    outs = f(x, w)
    outs = outs if isinstance(outs, tuple) else (outs,)
    chosen = outs if which is None else [outs[i] for i in which]
    torch.autograd.backward(chosen, [torch.randn_like(o) for o in chosen])
    return [*outs, x.grad, w.grad]


def agree(f: Program, jitted: Program, which: Sequence[int] | None = None) -> None:
    for n in SIZES:
        pairs = zip(gradients(jitted, n, which), gradients(f, n, which), strict=True)
        for mine, theirs in pairs:
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert torch.equal(mine, theirs)
                assert mine.stride() == theirs.stride()

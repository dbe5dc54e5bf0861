"""Small programs that show whether private names of PyTorch do what tj-cudagraph uses them for."""

from __future__ import annotations

import torch

from tj_cudagraph.adapter import CudaGraphs
from tj_cudagraph.testing.recorder import Recorder

__all__ = ["copies", "recordings"]


def copies() -> None:
    """See that many tensors are copied, each to its own place."""
    targets = [torch.zeros(2), torch.zeros(3, 3).t()]
    sources = [torch.ones(2), torch.arange(9.0).view(3, 3)]
    CudaGraphs().copy(targets, sources)
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source), f"{target} is not a copy of {source}"


def recordings() -> None:
    """See that what is recorded is run again, on the same memory."""
    x = torch.ones(2)
    replay, (found,) = Recorder().pool((0, 0)).capture(lambda: [x * 2])
    x.fill_(3)
    replay()
    assert found.tolist() == [6.0, 6.0], f"a replay gives {found}"

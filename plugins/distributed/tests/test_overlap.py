"""Buckets of ``DistributedDataParallel`` are reduced as early as in eager."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import DType, TensorProxy
from tj_distributed import buckets, names, overlap
from tj_distributed.buckets import Buckets
from torch import distributed, nn

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

FILE = str(Path(__file__).with_name("overlapping.py"))
WAYS = {
    "plain": {},
    "static graph": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused parameters": {"find_unused_parameters": True},
}

needs_gloo = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="this PyTorch has no gloo"
)


@needs_gloo
@pytest.mark.parametrize("way", WAYS)
def test_buckets_are_reduced_as_early_as_in_eager(way: str, ranks: Ranks) -> None:
    eager = ranks.run(FILE, "run", "eager", WAYS[way])
    for kind in ("inside", "outside", "before"):
        for mine, theirs in zip(ranks.run(FILE, "run", kind, WAYS[way]), eager, strict=True):
            assert isinstance(mine, tuple), mine
            assert len(mine[0]) > 3
            assert mine[0] == theirs[0]
            assert all(map(torch.equal, mine[1], theirs[1]))

"""Sequence and context parallel, and losses of sharded scores, on two processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tj_conformance.oracle.compare import differences
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

FILE = str(Path(__file__).with_name("parallel.py"))


NAMES = ("ulysses", "ring", "mixed", "loss", "loss and sequence", "tied", "embedding")


def check(found: dict[str, Any]) -> None:
    assert isinstance(found, dict), found
    assert not differences(found["eager"], found["jitted"])
    assert found["said"] == []
    assert found["entries"] == [1]
    assert found["joint"] == [True]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("jit", ["model", "loss"])
@pytest.mark.parametrize("name", NAMES)
def test_three_steps(name: str, jit: str, ranks: Ranks) -> None:
    for found in ranks.run(FILE, "compared", name, jit):
        check(found)
        ran, also = found["ran"]
        assert Counter(ran) == Counter(also)


def test_a_result_that_nobody_has_waited_for(ranks: Ranks) -> None:
    for eagers, jitted in ranks.run(FILE, "returned", "embedding"):
        assert jitted == eagers == "AsyncCollectiveTensor"


@pytest.mark.slow
def test_a_sum_of_which_each_takes_its_shard(ranks: Ranks) -> None:
    """An all-reduce becomes a reduce-scatter, which on two processes adds the same."""
    for found in ranks.run(FILE, "compared", "mixed", "model", True):
        check(found)
        ((start, *_),) = found["starts"]
        assert "reduce_scatter_tensor" in start

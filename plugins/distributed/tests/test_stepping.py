"""Steps of optimizers over shards: one program, equal to eager to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tj_conformance.oracle.compare import differences
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

FILE = str(Path(__file__).with_name("stepping.py"))
NAMES = (
    "SGD", "SGD lists", "AdamW", "AdamW lists", "Adam maximize", "RMSprop", "Adagrad", "NAdam",
)  # fmt: skip


def check(ranks: Ranks, how: str, name: str, functional: bool = False) -> None:
    for found in ranks.run(FILE, "compared", how, name, functional):
        assert isinstance(found, dict), found
        assert not differences(found["eager"], found["jitted"])
        assert found["fallbacks"] == []
        # Momentum begins with the gradient: another program.
        assert found["entries"] == 1 + name.startswith("SGD")
        assert bool(found["on shards"]) != functional
        assert bool(found["written"]) != functional, "shards are written in place"


def test_a_step_over_shards(ranks: Ranks) -> None:
    check(ranks, "shard", "AdamW lists")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamW lists", "SGD"])
def test_a_functional_step(name: str, ranks: Ranks) -> None:
    """On local tensors; kernels for lists make the values of all parameters, and take them."""
    check(ranks, "shard", name, functional=True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["shard", "fully_shard"])
@pytest.mark.parametrize("name", NAMES)
def test_every_step_over_shards(how: str, name: str, ranks: Ranks) -> None:
    check(ranks, how, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamW one by one", "SGD one by one"])
def test_a_step_over_many_parameters_of_one_shape(name: str, ranks: Ranks) -> None:
    check(ranks, "many", name)

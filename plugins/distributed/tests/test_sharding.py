"""Sharded models: equal to ``fully_shard`` in eager, with every collective in the program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tj_conformance.oracle.compare import differences
from torch import distributed

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

FILE = str(Path(__file__).with_name("sharded.py"))
NAMES = (
    "gathered again", "saved", "by budget", "checkpointed", "tied", "uneven", "in bfloat16",
    "all in bfloat16",
)  # fmt: skip


def run(ranks: Ranks, name: str, *args: Any) -> list[Any]:
    found = ranks.run(FILE, name, *args)
    assert not any(type(one).__name__ == "Failure" for one in found), found
    return found


def test_a_small_model(ranks: Ranks) -> None:
    """Seven rows on two processes: one of them pads its shard."""
    for one in run(ranks, "compared", "gathered again", False, True, 25.0):
        assert not differences(one["eager"], one["jitted"])
        assert one["fallbacks"] == []
        assert one["forward"] == {"all_gather_into_tensor_coalesced": 1}, "one bucket"
        assert one["backward"] == {
            "all_gather_into_tensor": 1,
            "reduce_scatter_tensor_coalesced": 1,
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_training(name: str, ranks: Ranks) -> None:
    gathers = 7 if name == "tied" else 8
    for one in run(ranks, "compared", name):
        assert not differences(one["eager"], one["jitted"])
        assert one["fallbacks"] == []
        assert one["forward"] == {"all_gather_into_tensor": gathers}
        assert one["backward"]["reduce_scatter_tensor"] == gathers - 1  # one parameter is frozen
        kept = name in ("saved", "by budget")
        assert ("all_gather_into_tensor" in one["backward"]) != kept


@pytest.mark.slow
def test_what_is_saved_is_what_the_whole_model_saves(ranks: Ranks) -> None:
    """Beside inputs, which parameters of the whole model are; padded shards come on top."""
    for whole, again, saved in zip(
        run(ranks, "whole_bytes"),
        run(ranks, "compared", "gathered again"),
        run(ranks, "compared", "saved"),
        strict=True,
    ):
        assert whole <= again["saved"] <= whole + 2 * 4 * 6 * 4
        assert saved["saved"] > again["saved"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gathered again", "in bfloat16"])
def test_replicas_of_shards(name: str, four: Ranks) -> None:
    """Gradients are split before replicas average them."""
    for one in run(four, "compared", name, True):
        assert not differences(one["eager"], one["jitted"])
        assert one["fallbacks"] == []
        assert one["backward"]["all_reduce"] == one["backward"]["reduce_scatter_tensor"] == 7


@pytest.mark.slow
def test_four_ranks(four: Ranks) -> None:
    """gloo adds up four values in an order that depends on their place in the bucket."""
    for one in run(four, "compared", "gathered again", False, True):
        assert not differences(one["eager"], one["jitted"])
        assert one["forward"] == {"all_gather_into_tensor": 2}


@pytest.mark.parametrize("name", ["checkpointed", "uneven"])
def test_eager(name: str, ranks: Ranks) -> None:
    for one in run(ranks, "eager", name):
        assert not differences(one["fully"], one["shard"])


def test_outside_of_forward_the_parameters_are_shards(ranks: Ranks, tmp_path: Path) -> None:
    for rank, one in enumerate(run(ranks, "looked_at", str(tmp_path))):
        assert one.pop("kept") == (4, 3)[rank] * 5 * 4, "bytes of this rank's rows alone"
        assert all(one.values()), one


def test_what_cannot_be_sharded_is_refused(ranks: Ranks) -> None:
    said = (
        "weight is sharded already", "0 is compiled already; compile what shard returns",
        "shard takes a DeviceMesh", "reshard is 'yes'", "Linear.beside holds a parameter beside",
        "gain has no dimension", "weight is not contiguous", "has no size yet",
        "shard takes a module", "LSTM._flat_weights holds a parameter",
    )  # fmt: skip
    for found in run(ranks, "refused"):
        for text, expected in zip(found, said, strict=True):
            assert expected in text

"""Collectives as users spell them: captured, or eager's with one warning; equal to eager."""

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

FILE = str(Path(__file__).with_name("spelled.py"))
WRITES = ("reduced", "reduced_in_part", "scattered")
CAPTURED = (*WRITES, "gathered", "exchanged")
REASONS = {
    "sent_to_all": "graph break",
    "reduced_meanwhile": "async_op=True",
    "gathered_meanwhile": "async_op=True",
    "passed_on": "P2P",
    "passed_on_in_one": "P2P",
    "passed_in_turn": "P2P",
    "with_gradient_reduced": "torch.distributed.nn.functional.all_reduce",
    "with_gradient_gathered": "torch.distributed.nn.functional.all_gather",
    "with_gradient_sent_to_all": "torch.distributed.nn.functional.broadcast",
}
"""The programs that are not captured whole, each with a part of the warning."""


def check(ranks: Ranks, name: str, grad: bool, reason: str | None) -> None:
    for found in ranks.run(FILE, "compared", name, grad):
        assert isinstance(found, dict), found
        assert not differences(found["eager"], found["jitted"])
        if reason is None:
            assert found["said"] == []
            assert found["entries"] == 1
        else:
            (said,) = found["said"]
            assert reason in said


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_needs_a_gradient(name: str, ranks: Ranks) -> None:
    """Dynamo captures a collective with a gradient, which in eager it has not."""
    check(ranks, name, True, "writes to a tensor that needs a gradient")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CAPTURED)
def test_captured(name: str, grad: bool, ranks: Ranks) -> None:
    if not (grad and name in WRITES):
        check(ranks, name, grad, None)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", REASONS)
def test_eager_with_one_warning(name: str, grad: bool, ranks: Ranks) -> None:
    check(ranks, name, grad, REASONS[name])

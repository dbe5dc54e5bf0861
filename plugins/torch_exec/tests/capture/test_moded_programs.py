"""User's modes see the program's operations, and checkpoints write as often as in eager."""

from __future__ import annotations

import pytest
from tj_conformance.programs.checkpoints import checkpointed_programs
from tj_conformance.programs.modes import moded_programs
from tj_conformance.programs.observations import differences_seen, warned

pytestmark = pytest.mark.usefixtures("lenient")

MODED = {p.name: p for p in moded_programs()}
CHECKPOINTED = {p.name: p for p in checkpointed_programs()}


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", MODED)
def test_modes_see_the_program(name: str) -> None:
    assert differences_seen(MODED[name]) == []


@pytest.mark.parametrize("way", ["around", "both", "around with gradients"])
@pytest.mark.parametrize("mode", ["function", "dispatch"])
def test_under_a_mode_the_original_runs(way: str, mode: str) -> None:
    program = MODED[f"pointwise, {way}, {mode}"]
    assert differences_seen(program) == []
    assert len(warned(program)) == 1


@pytest.mark.sampled(12)
@pytest.mark.parametrize("body", ["pointwise", "module", "own backward", "random"])
@pytest.mark.parametrize("way", ["backward", "gradient", "second gradient"])
@pytest.mark.parametrize("mode", ["function", "dispatch"])
def test_a_backward_in_a_mode(body: str, way: str, mode: str) -> None:
    assert differences_seen(MODED[f"{body}, {way}, {mode}"]) == []


def test_a_default_device_is_no_reason_to_run_the_original() -> None:
    assert warned(MODED["pointwise, around, device"]) == []


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoints_write_as_often_as_in_eager(name: str) -> None:
    assert differences_seen(CHECKPOINTED[name]) == []


@pytest.mark.parametrize("body", ["batch norm", "buffer", "view of a buffer"])
def test_a_checkpoint_that_writes_is_left_to_eager(body: str) -> None:
    program = CHECKPOINTED[f"{body}, one, training"]
    assert differences_seen(program) == []
    found = warned(program)  # once: each run names a file of its own
    assert [w for w in found if "checkpoint writes" in w] == found != []


@pytest.mark.parametrize("name", ["batch norm, one, evaluation", "nothing, one, training"])
def test_a_checkpoint_that_does_not_is_captured(name: str) -> None:
    assert warned(CHECKPOINTED[name]) == []

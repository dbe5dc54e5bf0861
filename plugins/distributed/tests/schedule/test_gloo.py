"""Gathers on gloo that are under way at once, for which PyTorch's threads need short names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tj_conformance.oracle.compare import differences
from tj_core.extend import BoundSymbol, Device
from tj_distributed import probes
from tj_distributed.options import Options
from tj_distributed.plugin import tj_rule_tables
from tj_distributed.schedule import gloo
from tj_suites.collectives import Program
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

PROGRAMS = str(Path(__file__).with_name("scheduled.py"))


@pytest.mark.slow
def test_no_gather_of_a_program_has_a_long_name_in_gloo(ranks: Ranks) -> None:
    """Values are eager's to the bit, and what starts them is not what names them."""
    for found in ranks.run(PROGRAMS, "under_way"):
        assert isinstance(found, dict), found
        assert not differences(found["eager"], found["jitted"])
        assert found["fallbacks"] == []
        assert found["operators"] == {
            "single": {"all_gather_into_tensor_out": 6},
            "coalesced": {"all_gather_into_tensor_out": 3},
        }
        assert set(found["single"]) == set(found["coalesced"]) == {"G", "w"}


def run_as(call: BoundSymbol) -> Any:
    rule = gloo.gathers().get(call.symbol)
    return rule and rule.value(call)


def test_other_calls_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reductions, groups of other backends, and tensors on other devices."""
    known = {"0"}
    monkeypatch.setattr("tj_distributed.adapter.is_on_gloo", lambda name: name in known)
    p = Program()
    x = p.given()
    for letter, group in (("G", "0"), ("G", "1"), ("R", "0"), ("A", "0")):
        p.start(letter, x, group)
    here, *others = p.calls
    assert run_as(here) is gloo._gather
    assert [run_as(call) for call in others] == [None] * 3
    there = here.replace(args=(x.replace(device=Device("cuda")), *here.args[1:]))
    assert run_as(there) is None


def test_collectives_that_stay_where_they_are_run_as_they_are() -> None:
    names = {on: [t.name for t in tj_rule_tables(Options(overlap=on))] for on in (True, False)}
    assert "runs_as" in names[True]
    assert "runs_as" not in names[False]


def test_the_probe_finds_a_gather_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "gather_out", lambda *given: None)
    with pytest.raises(AssertionError, match="another value"):
        probes.gathering()

"""The kit finds twelve faults in three places, and nothing where there is none."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from tj_conformance.executor.faults import FAULTS, PLACES, Planted, checked, finding
from tj_conformance.executor.kit import AMOUNTS, Amount, Kit
from tj_conformance.executor.operations import matching
from tj_conformance.executor.subject import subject
from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    PassContext,
    Replacement,
    RuleTable,
    Stage,
    Trace,
    Transform,
    hookimpl,
)

PAGE = Path(__file__).resolve().parents[4] / "docs" / "kit.md"


def listed(heading: str = "## Planted faults") -> dict[tuple[str, str], str]:
    """The probe that finds each fault in each place, as the page says under ``heading``."""
    row = r"^\| ([a-z -]+) \| `(\w+)` \| `(\w+)` \| `(\w+)` \|$"
    section = PAGE.read_text("utf-8").partition(f"\n{heading}\n")[2].partition("\n#")[0]
    found = re.findall(row, section, re.MULTILINE)
    return {
        (fault, place): probe
        for fault, *probes in found
        for place, probe in zip(PLACES, probes, strict=True)
    }


@pytest.mark.sampled(8)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_shown(fault: str, place: str) -> None:
    found = finding(place, fault)
    assert found is not None
    assert found.probe == listed()[fault, place]
    assert found.owner == "executor 'planted' of plugin 'planted' (inline)"
    assert (found.operation, found.dtype, found.sample) == ("tanh", "float32", "sample 0")
    shows(found.program, Planted(place, fault))


def shows(program: str, plugin: Any) -> None:
    """The program raises with the fault, and does not without."""
    assert len(program.splitlines()) < 18
    right = Planted(plugin.place)
    exec(program, {"planted_plugin": right})
    with pytest.raises(Exception) as error:  # noqa: PT011 (any: of a region, of a kernel, of a probe)
        exec(program, {"planted_plugin": plugin})
    assert type(error.value).__name__ in ("Differs", "PluginError", "IndexError", "RuntimeError")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_found_where_nothing_is_wrong(place: str) -> None:
    tested = subject("planted", [Planted(place), "torch", "autograd"])
    kit = Kit(tested, AMOUNTS["fast"], dtypes=("float32",))
    (cell,) = kit.run(matching(["tanh"], region=place == "region"))
    assert kit.report.findings == []
    assert cell.others == []
    assert cell.text == "1/1"
    assert cell.probed >= 30
    assert kit.report.untried == ()


IN_EVERY_RUN = "### The same at `check=3`"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_in_a_users_run(fault: str, place: str) -> None:
    assert checked(place, fault) == listed(IN_EVERY_RUN)[fault, place]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_found_in_a_users_run_where_nothing_is_wrong(place: str) -> None:
    assert checked(place, None) is None


@pytest.mark.parametrize("heading", ["## Planted faults", IN_EVERY_RUN])
def test_all_faults_are_in_the_page(heading: str) -> None:
    assert [*listed(heading)] == [(fault, place) for fault in FAULTS for place in PLACES]


@pytest.mark.slow
def test_all_samples_of_a_right_executor_in_several_data_types() -> None:
    tested = subject("planted", [Planted("pair"), "torch", "autograd"])
    kit = Kit(tested, AMOUNTS["full"], dtypes=("float64", "complex64"))
    with contextlib.redirect_stderr(io.StringIO()):
        cells = [*kit.run(matching(["tanh"]))]
    assert {cell.text for cell in cells} == {"1/1"}
    assert kit.report.findings == []


class Halving(Planted):
    """Its programs are wrong, whoever runs their regions."""

    @hookimpl
    def tj_transforms(self) -> tuple[Transform, ...]:
        def apply(trace: Trace, context: PassContext) -> Trace:
            mine = any(executor.name == self.tj_name for executor in context.executors)
            return context.rewrite(trace, halves) if mine else trace

        halves: RuleTable[Any] = RuleTable("halves")
        halves.set("torch.tanh", _half)
        return (Transform("halves", apply, Stage.FUNCTIONAL),)


def _half(call: BoundSymbol, edit: CallEditor) -> Replacement:
    whole = edit.call("torch.tanh", *call.args)
    half = edit.call("torch.mul", whole.outputs, 0.5)
    return Replacement((whole, half), {call.outputs.name: half.outputs})


def test_what_differs_with_pytorchs_kernels_in_regions_is_no_finding() -> None:
    tested = subject("planted", [Halving("region"), "torch", "autograd"])
    kit = Kit(tested, Amount(1, 0, False), dtypes=("float32",))
    (cell,) = kit.run(matching(["tanh"], region=True))
    assert cell.takes
    assert cell.findings == []
    assert any("Tensor-likes are not close" in text for text in cell.others)

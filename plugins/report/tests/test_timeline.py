"""Timeline of collectives: what is computed between start and wait."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.distributed as dist
from tj_core.extend import Started
from tj_core.internal import Overlap
from tj_report.data import program_data
from tj_report.timeline import rows, timeline_svg


@pytest.fixture
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


HIDDEN = Overlap("a", Started("all_reduce", "0", 2048), 2, "c", 6)
EXPOSED = Overlap("b", Started("all_gather", "<g>", None), 8, "", 0)


def test_the_table() -> None:
    assert rows([HIDDEN, EXPOSED]) == [
        ["a", "all_reduce", "0", "2.0 KiB", "2 calls", "c", "6 calls"],
        ["b", "all_gather", "<g>", "", "8 calls", "(the end)", "nothing: exposed"],
    ]


def test_the_plot_has_a_bar_from_start_to_wait() -> None:
    root = ElementTree.fromstring(timeline_svg([HIDDEN, EXPOSED]))
    assert root.get("aria-label") == "2 collectives, 1 of them exposed"
    bars = [e for e in root.iter() if e.tag == "rect"]
    (first, width), (last, mark) = (
        (float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars
    )
    assert (first, width) == (300 + 2 * 600 / 8, 6 * 600 / 8)
    assert last + mark <= 908, "the mark of the last call is inside"
    assert mark == 3
    assert [e.get("class") for e in root.iter() if e.tag == "g"] == ["hidden", "exposed"]
    assert "all_gather, group <g>" in [e.text for e in root.iter() if e.tag == "text"]
    assert timeline_svg([]) == ""


@pytest.mark.usefixtures("_group")
@pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no torch.distributed")
def test_the_page_of_a_program_with_collectives(parsed: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return x.sin().cos() + y

    jitted = tj.jit(f, plugins=["torch", "autograd", "distributed"])
    jitted(torch.ones(3))
    (program,) = tj.programs(jitted)
    data = program_data(program)
    header, (_, operation, _, size, after, _, hidden) = data["started"]
    assert header[1] == "operation"
    assert (operation, size, after, hidden) == ("all_reduce", "12 B", "1 call", "2 calls")
    page = parsed(jitted, "collectives")
    assert page.data(0)["timeline"] == data["timeline"] != ""
    plain = tj.jit(torch.sin, plugins=["torch"])
    plain(torch.ones(3))
    (program,) = tj.programs(plain)
    assert (program_data(program)["started"], program_data(program)["timeline"]) == ([], "")

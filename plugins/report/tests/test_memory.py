"""Memory over a program, and its plot."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import tj_core as tj
import torch
import torch.distributed as dist
from tj_core.extend import SymDim
from tj_report.data import collectives
from tj_report.memory import memory_over, memory_svg, readable


def trace_of(f, *inputs):
    jitted = tj.jit(f, plugins=["torch"], torch={"functional": "never"})
    jitted(*inputs)
    return tj.last_trace(jitted)


def test_values_are_held_until_they_are_read_last():
    def f(x):
        a = x.sin()  # 400 bytes
        b = a.cos()  # 400 more, and a ends
        return b.sum()  # 4 more

    assert memory_over(trace_of(f, torch.rand(100))) == [400, 800, 404]


def test_views_and_inputs_do_not_count_again():
    def f(x):
        return x.view(10, 10).t(), (x + 1).view(10, 10)

    assert memory_over(trace_of(f, torch.rand(100)))[-1] == 400


def test_symbols_count_with_the_size_of_the_first_call():
    trace = trace_of(lambda x: x.sin(), torch.rand(100))
    (call,) = trace.calls
    out = call.outputs.replace(shape=(SymDim("s0", 7),))
    assert memory_over(trace.replace(calls=(call.replace(outputs=out),), outputs=(out,))) == [28]


def test_the_plot_is_svg_with_a_point_for_each_call():
    root = ElementTree.fromstring(memory_svg([1024, 4096, 2048]))
    line = next(e for e in root if e.tag.endswith("polyline"))
    heights = [float(point.partition(",")[2]) for point in line.get("points").split()]
    assert len(heights) == 3
    assert min(heights) == heights[1]
    assert [e.text for e in root if e.tag.endswith("text")] == [
        "4.0 KiB",
        "0",
        "first call",
        "call 3",
    ]
    assert memory_svg([]) == ""


def test_long_programs_keep_their_peak():
    values = [*range(5000), 9999, *range(5000)]
    line = ElementTree.fromstring(memory_svg(values))[1]
    heights = [float(point.partition(",")[2]) for point in line.get("points").split()]
    assert len(heights) <= 600
    assert min(heights) == 20


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")]
)
def test_bytes_for_people(count, text):
    assert readable(count) == text


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no torch.distributed")
def test_collectives_are_listed(group):
    def f(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    found = [row[1] for row in collectives(trace_of(f, torch.ones(3)).calls)]
    names = ("all_reduce", "wait_tensor")
    assert found == [f"torch.ops._c10d_functional.{name}.default" for name in names]

"""Segments by themselves: a function of tensors in the place of a program."""

from __future__ import annotations

import pytest
import torch
from tj_cudagraph.options import Options
from tj_cudagraph.segment import Segments
from tj_cudagraph.testing.recorder import Recorder

X = torch.arange(12.0).view(3, 4)


def program(weight: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * 2 + weight, x.sum(0))


OTHERS = (X[:2], X.t().contiguous().t(), X.double(), X[:, :1].expand(3, 4), X[:0], X)
"""``X`` in other shapes, strides and data types."""


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("static", [True, False])
def test_inputs_of_other_metadata_have_other_graphs(static: bool) -> None:
    recorder = Recorder()
    segments = Segments(recorder, Options(warmup=1))
    weight = torch.tensor(3.0)

    def scaled(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return program(weight, inputs[0])

    for _ in range(3):
        for x in OTHERS:
            given = ((x,), ()) if static else ((), (x,))
            got, expected = segments.run(scaled, *given), program(weight, x)
            torch.testing.assert_close(tuple(got), expected, rtol=0, atol=0)
            assert [r.stride() for r in got] == [r.stride() for r in expected]
    assert recorder.counts == (6, 6, 12)


def test_a_kind_of_inputs_is_counted_as_long_as_few_others_come() -> None:
    recorder = Recorder()
    segments = Segments(recorder, Options(warmup=2, graphs=2))

    def double(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2,)

    for n in (5, *range(100), 5, 5):
        segments.run(double, (), (torch.ones(n),))
    assert recorder.captures == 0
    segments.run(double, (), (torch.ones(5),))
    assert recorder.captures == 1
    (segment,) = segments.segments.values()
    assert len(segment.runs) <= 64


def test_a_kernel_may_run_a_segment_itself() -> None:
    recorder = Recorder()
    segments = Segments(recorder, Options(warmup=1))

    def inner(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.exp(),)

    def outer(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (segments.run(inner, (), (x + 1,))[0] * 2,)

    for i in range(5):
        (got,) = segments.run(outer, (), (X + i,))
        torch.testing.assert_close(got, (X + i + 1).exp() * 2)
    assert recorder.captures == 1, "inside of a capture the inner one runs plainly"

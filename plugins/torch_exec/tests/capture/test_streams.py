"""Programs with streams, which eager runs. Streams of CPUs do nothing, and there are no events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch
from tj_core.extend import CaptureError
from tj_torch.capture.streams import refuse_streams

Program = Callable[[torch.Tensor], torch.Tensor]

OUTSIDE = torch.Stream("cpu")


def a_block(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    with torch.Stream("cpu"):
        z = y + 1
    return z * y


def a_block_of_an_outer_stream(x: torch.Tensor) -> torch.Tensor:
    with OUTSIDE:
        z = x + 1
    return z * 3


def a_block_in_a_condition(x: torch.Tensor) -> torch.Tensor:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with OUTSIDE:
            return x.sin()

    return torch.utils.checkpoint.checkpoint(inside, x, use_reentrant=False)


def a_stream_that_is_waited_for(x: torch.Tensor) -> torch.Tensor:
    y = x.to("cpu", non_blocking=True) * 2
    OUTSIDE.synchronize()
    return y


@pytest.mark.skipif(torch.__version__ < "2.11", reason="Dynamo breaks the graph at these streams")
@pytest.mark.parametrize(
    "f",
    [a_block, a_block_of_an_outer_stream, a_block_in_a_condition, a_stream_that_is_waited_for],
)
def test_eager_runs_a_program_that_chooses_streams(f: Program) -> None:
    jitted = tj.jit(f, session=tj.Session(("autograd", "torch"), overrides={"strict": False}))
    x = torch.rand(3, requires_grad=True)
    with pytest.warns(tj.TjWarning, match="the caller's") as found:
        out = jitted(x)
    assert len(found) == 1
    assert torch.equal(out, f(x))
    assert torch.equal(jitted(x), out)


def test_an_unused_stream_is_no_hindrance() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.Stream("cpu")
        return x + 1

    x = torch.rand(3)
    assert torch.equal(tj.jit(f)(x), f(x))


def test_memory_that_another_stream_uses() -> None:
    """There is no such tensor on a CPU, and Dynamo would refuse it before."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_method("record_stream", (x, OUTSIDE))
    refuse_streams(x)
    with pytest.raises(CaptureError, match="record_stream"):
        refuse_streams(node)

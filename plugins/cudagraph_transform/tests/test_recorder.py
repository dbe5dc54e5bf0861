"""The recorder does to memory what CUDA's graphs do, so that other tests can tell."""

from __future__ import annotations

import pytest
import torch
from tj_cudagraph.testing.recorder import Recorder

ONE, TWO = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])


def test_a_capture_computes_nothing_and_a_replay_writes_the_same_memory() -> None:
    x = ONE.clone()
    replay, (y,) = Recorder().pool((0, 0)).capture(lambda: (torch.exp(x + 1),))
    before = y.clone()
    replay()
    first, shown = y.clone(), y
    x.copy_(TWO)
    replay()
    torch.testing.assert_close([first, y], [torch.exp(ONE + 1), torch.exp(TWO + 1)])
    assert shown is y
    assert not torch.equal(before, first)


def test_writes_and_views_are_replayed() -> None:
    x = torch.eye(2)
    replay, (y,) = Recorder().pool((0, 0)).capture(lambda: ((x * 2).t().add_(x[0])[1],))
    x += 1
    replay()
    torch.testing.assert_close(y, (x * 2).t().add(x[0])[1])


def test_a_replay_overwrites_the_results_of_graphs_that_were_captured_later() -> None:
    pool = Recorder().pool((0, 0))
    first, (a,) = pool.capture(lambda: (ONE + 1,))
    second, (b,) = pool.capture(lambda: (ONE * 2,))
    first()
    second()
    torch.testing.assert_close([a, b], [ONE + 1, ONE * 2])
    first()
    torch.testing.assert_close(a, ONE + 1)
    assert not torch.equal(b, ONE * 2)


def test_what_waits_for_the_device_cannot_be_captured() -> None:
    recorder = Recorder()
    pool = recorder.pool((0, 0))
    with pytest.raises(RuntimeError, match="due to a previous error") as caught:
        pool.capture(lambda: (ONE * ONE.sum().item(),))
    assert "not permitted when stream is capturing" in str(caught.value.__cause__)
    assert not recorder.capturing
    assert recorder.captures == 0

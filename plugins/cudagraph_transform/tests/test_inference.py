"""Programs without gradients: replayed, equal to eager, and what callers keep is theirs."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch import nn


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 2 + 1).exp() - x


def inputs(count: int, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(0)
    sizes = shape or (2, 3)
    made = (torch.rand(*sizes, generator=generator, device="cpu") for _ in range(count))
    return [x.to(torch.get_default_device()) for x in made]


def equal(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_segment_is_warmed_up_then_captured_then_replayed(graphed: Any) -> None:
    session = graphed(warmup=3, check=2)
    f, xs = session.jit(program), inputs(7)
    equal([f(x) for x in xs], [program(x) for x in xs])
    assert session.recorder.counts == (3, 1, 4)


def test_results_are_not_overwritten_by_later_replays(session: Any) -> None:
    f, xs = session.jit(program), inputs(6)
    results = [f(x) for x in xs]
    rows = [r[0] for r in results]
    equal(results, [program(x) for x in xs])
    equal(rows, [program(x)[0] for x in xs])
    assert len({r.untyped_storage().data_ptr() for r in results}) == len(results)
    results[-1].zero_()
    equal(f(xs[0]), program(xs[0]))


def test_results_are_nobody_elses(session: Any) -> None:
    f, xs = session.jit(program), inputs(4)
    results = [weakref.ref(f(x)) for x in xs]
    assert [r() for r in results] == [None] * 4


def test_inputs_are_read_when_they_are_given(session: Any) -> None:
    f, (x,) = session.jit(program), inputs(1)
    for _ in range(4):
        x += 1
        equal(f(x), program(x))
    assert session.recorder.captures == 1


def test_views_of_inputs_and_parameters_are_of_these(session: Any) -> None:
    layer = nn.Linear(3, 3).requires_grad_(False)

    def views(x: torch.Tensor) -> Any:
        y = x * 2 + 1
        return x.t(), layer.weight[0], y, y.t(), y.view(-1)[1:]

    f = session.jit(views)
    for x in inputs(4):
        got, expected = f(x), views(x)
        equal(got, expected)
        assert got[0].data_ptr() == x.data_ptr()
        assert got[1].data_ptr() == layer.weight.data_ptr()
        got[2].fill_(7)
        assert (got[3] == 7).all()
        assert (got[4] == 7).all()
    assert session.recorder.replays == 3


def test_expanded_inputs_keep_their_strides(session: Any) -> None:
    f = session.jit(lambda x: (x.exp() * 2, x.sum(0) + 1))
    for x in inputs(4, 3, 1):
        equal(f(x.expand(3, 4)), (x.expand(3, 4).exp() * 2, x.expand(3, 4).sum(0) + 1))
    assert session.recorder.replays == 3


def test_inputs_whose_elements_share_memory_run_without_a_graph(graphed: Any) -> None:
    session = graphed(strict=False)
    f = session.jit(program)
    with pytest.warns(tj.TjWarning, match="elements of an input share memory") as said:
        for x in inputs(4, 5):
            windows = x.unfold(0, 3, 1)
            equal(f(windows), program(windows))
    assert len(said) == 1
    assert session.recorder.replays == 0


class Block(nn.Module):
    """A layer with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("scale", torch.rand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Some calls."""
        return F.gelu(self.linear(x)) * self.scale


def test_parameters_stay_where_they_are_and_are_read_there(session: Any) -> None:
    model = Block()
    f = session.jit(model)
    with torch.no_grad():
        for x in inputs(5):
            equal(f(x), model(x))
            model.linear.weight += 1
            model.scale.mul_(2)
    assert session.recorder.counts == (1, 1, 4)
    (run,) = tj.last_trace(f).calls
    assert {p.name for p in run.args[1]} == {"linear_weight", "linear_bias", "scale"}


def test_a_parameter_at_another_address_makes_another_graph(session: Any) -> None:
    model = Block()
    f, xs = session.jit(model), inputs(4)
    old = model.linear.weight.data
    with torch.no_grad():
        for data in (old, torch.rand(3, 3), old):
            model.linear.weight.data = data
            for x in xs:
                equal(f(x), model(x))
    # The first one's graph is still there for the third.
    assert session.recorder.counts == (2, 2, 10)


def test_a_segment_has_so_many_graphs_and_runs_without_for_the_rest(graphed: Any) -> None:
    session = graphed(graphs=2)
    model, kept = Block(), []
    f, (x, y, z) = session.jit(model), inputs(3)
    with torch.no_grad(), pytest.warns(tj.TjWarning, match="2 graphs, each for inputs") as said:
        for _ in range(4):
            model.linear.weight.data = torch.rand(3, 3)
            kept.append(model.linear.weight.data)
            equal([f(x), f(y), f(z)], [model(x), model(y), model(z)])
    assert len(said) == 1
    assert session.recorder.counts == (2, 2, 4)


def test_other_shapes_have_other_graphs(session: Any) -> None:
    f = session.jit(program, dynamic=False)
    for shape in ((2, 3), (4, 3), (2, 3), (4, 3)):
        for x in inputs(2, *shape):
            equal(f(x), program(x))
    assert session.recorder.counts == (2, 2, 6)


def test_sizes_that_are_symbols_have_no_graphs(session: Any) -> None:
    f = session.jit(program, dynamic=True)
    for n in (2, 3, 4):
        (x,) = inputs(1, n, 3)
        equal(f(x), program(x))
    assert session.recorder.counts == (0, 0, 0)


def test_results_in_inference_mode_are_of_that_mode(session: Any) -> None:
    f, xs = session.jit(program), inputs(3)
    for _ in range(2):
        equal([f(x) for x in xs], [program(x) for x in xs])
        with torch.inference_mode():
            results = [f(x) for x in xs]
            equal(results, [program(x) for x in xs])
            assert all(map(torch.is_inference, results))
        assert not torch.is_inference(f(xs[0]))
    assert session.recorder.replays > 0


def test_two_callers_in_turns_share_a_pool(session: Any) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + x).cos() * 3

    f, g, xs, kept = session.jit(program), session.jit(other), inputs(5), []
    for x in xs:
        kept.append((f(x), g(x)))
    kept.append((f(g(xs[0])), g(f(xs[0]))))
    expected = [(program(x), other(x)) for x in xs]
    equal(kept, [*expected, (program(other(xs[0])), other(program(xs[0])))])
    assert len(session.recorder.pools) == 1
    assert session.recorder.captures == 2


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("streams", [1, 3])
def test_threads(session: Any, streams: int) -> None:
    f, wrong = session.jit(program), []
    f(inputs(1)[0])

    def work(number: int) -> None:
        session.recorder.thread.stream = number % streams
        for i, x in enumerate(inputs(20)):
            shifted = x + number + i
            if not torch.equal(f(shifted), program(shifted)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(session.recorder.pools) == streams
    assert session.recorder.captures == streams


@pytest.mark.usefixtures("recorded")
def test_graphs_go_with_their_program(session: Any) -> None:
    f = session.jit(program)
    for x in inputs(3):
        f(x)
    (pool,) = session.recorder.pools
    (graph,) = pool.graphs
    assert graph() is not None
    del f
    torch.compiler.reset()
    gc.collect()
    assert graph() is None


@pytest.mark.usefixtures("recorded")
def test_inside_of_a_capture_nothing_is_captured(session: Any) -> None:
    f, xs = session.jit(program), inputs(3)
    session.recorder.thread.capturing = True
    equal([f(x) for x in xs], [program(x) for x in xs])
    assert session.recorder.counts == (0, 0, 0)

"""Graphs of regions run operator by operator, as what Inductor compiles would be run."""

from __future__ import annotations

from typing import Any

import torch
from tj_suites.upstream.interpreting import interpreted
from torch.fx.experimental.proxy_tensor import make_fx


def graph_of(function: Any, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The operators that ``function`` calls, as a graph that returns a list."""
    return make_fx(lambda *args: [function(*args)], tracing_mode="fake")(*inputs)


def test_a_graph_is_a_function_of_a_list_that_it_empties() -> None:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    graph = graph_of(lambda y: y.sin() + 1, x.detach())
    box: list[Any] = [x]
    (result,) = interpreted(graph, [x]).current_callable(box)
    assert torch.equal(result, x.detach().sin() + 1)
    assert not box
    assert not result.requires_grad


def test_results_have_the_strides_of_the_graph() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    graph = graph_of(torch.sin, x)
    (result,) = interpreted(graph, [x])([x.t().contiguous().t()])
    assert torch.equal(result, x.sin())
    assert result.stride() == (3, 1)


def test_what_a_graph_writes_is_written_to_the_argument() -> None:
    x = torch.arange(3.0)
    graph = graph_of(lambda y: y.mul_(2), torch.arange(3.0))
    (result,) = interpreted(graph, [x])([x])
    assert torch.equal(x, torch.tensor([0.0, 2.0, 4.0]))
    assert result.data_ptr() == x.data_ptr()
    assert x._version == 0  # tj counts the writes of kernels, which do not

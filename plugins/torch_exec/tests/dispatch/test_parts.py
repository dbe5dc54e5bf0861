"""Parts of programs with graph breaks, as PyTorch's hook gives them to the backend."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_torch.backend import backend_state
from tj_torch.dispatch.compiler import GraphCompiler
from tj_torch.ops.service import TorchDialects


def given(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x,)


def computed(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * 2,)


@pytest.mark.parametrize(("program", "entries"), [(given, 0), (computed, 1)])
def test_a_part_that_computes_nothing_is_no_program(program: object, entries: int) -> None:
    graph = torch.fx.symbolic_trace(program)  # type: ignore[arg-type]
    x = torch.ones(2)
    for node in graph.graph.nodes:
        node.meta["example_value"] = x
    jitted = backend_state(graph, session=tj.Session(["torch"]))
    run = GraphCompiler(jitted, TorchDialects.of(jitted.session)).backend(graph, (x,))
    assert torch.equal(run(x)[0], graph(x)[0])
    assert jitted.stats.entries == entries

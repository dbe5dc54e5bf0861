"""Programs that draw from generators of their own, which only FX graphs contain.

Dynamo breaks the graph at a call with a generator.
"""

from __future__ import annotations

import functools

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.aliasing import Program, check
from tj_conformance.programs.scenes import Source


@functools.cache
def session(functional: str) -> tj.Session:
    return tj.Session(["torch"], overrides={"torch": {"functional": functional}})


def draws(*, then_reads: bool) -> Program:
    """Draw from two generators and the default one, write, and index, perhaps out of bounds."""
    root = torch.nn.Module()
    root.own = torch.Generator().manual_seed(5)
    root.other = torch.Generator().manual_seed(6)
    graph = torch.fx.Graph()
    x, i = graph.placeholder("x"), graph.placeholder("i")
    own, other = graph.get_attr("own"), graph.get_attr("other")
    noise = graph.call_function(torch.rand, (4, 3), {"generator": own})
    graph.call_method("add_", (x, noise))
    graph.call_method("bernoulli_", (x, 0.5), {"generator": other})
    again = graph.call_function(torch.randn, (3,), {"generator": own})
    graph.call_method("mul_", (x, again))
    graph.call_method("add_", (x, graph.call_function(torch.rand_like, (x,))))
    read = graph.call_function(torch.nn.functional.embedding, (i, x)) if then_reads else x
    graph.output((read, noise))
    module = torch.fx.GraphModule(root, graph)
    state = lambda: [module.own.get_state(), module.other.get_state()]  # noqa: E731
    return Program(module, state)


def scene(kind: str, index: int):
    """Matrix of ``kind``, with the index of a row, or one out of bounds."""

    def make():
        new = Source(kind)
        return new.scene(new(4, 3), torch.tensor([index]))

    return make


@pytest.mark.parametrize("functional", ["auto", "always"])
@pytest.mark.parametrize("then_reads", [False, True])
@pytest.mark.parametrize("kind", ["plain", "inner"])
def test_generators_are_where_eager_leaves_them(kind, then_reads, functional) -> None:
    """After an error in the middle, too: numbers before it are drawn once."""
    report = check(
        lambda: draws(then_reads=then_reads),
        [scene(kind, 1), scene(kind, 7), scene(kind, 2)],
        jit=lambda fn: tj.jit(fn, session=session(functional), frontend="fx"),
        lenient=functional == "always",
        ignore=("grad_fn",) if functional == "always" else (),
    )
    assert report.ok, str(report)
    assert report.compilations
    assert not report.fallbacks
    # A result that depends on the argument's new value has a gradient by the caller's argument.
    seen_by_autograd = then_reads and kind == "inner" and functional == "always"
    assert any(c.declined for c in report.compilations) == seen_by_autograd
    assert any(report.raised) == then_reads

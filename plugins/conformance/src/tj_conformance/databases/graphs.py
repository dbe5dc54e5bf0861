"""PyTorch's databases as FX graphs, compiled by the frontend
``fx``, against the graphs in eager.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tj_core as tj
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tj_conformance.databases.known import UNDEFINED
from tj_conformance.databases.op_db import full_name, sample_arguments
from tj_conformance.oracle.compare import compare, differences, seeded
from tj_conformance.oracle.device import device
from tj_conformance.oracle.result import Kind, Problem, Result
from tj_conformance.oracle.twins import clone_tree

__all__ = [
    "ORIGINS",
    "aten_graph",
    "hand_built",
    "hold_graph",
    "module_graphs",
    "run_graphs",
    "torch_graph",
]

Tensors = tuple[torch.Tensor, ...]


def hand_built(
    build: Callable[[torch.fx.Graph], Any], root: torch.nn.Module | None = None
) -> torch.fx.GraphModule:
    """The graph that ``build`` adds nodes to, whose output is what ``build`` returns."""
    graph = torch.fx.Graph()
    graph.output(build(graph))
    return torch.fx.GraphModule(root or torch.nn.Module(), graph)


def aten_graph(function: Callable[..., Any], tensors: Tensors) -> torch.fx.GraphModule:
    """The ATen calls that ``function`` makes for ``tensors``, as `make_fx` records them."""
    return make_fx(function)(*clone_tree(tensors))


def torch_graph(function: Callable[..., Any], tensors: Tensors) -> torch.fx.GraphModule:
    """The torch-level calls of ``function``, as `symbolic_trace` records them."""
    names = ", ".join(f"a{i}" for i in range(len(tensors)))
    scope = {"function": function}
    exec(f"def program({names}): return function({names})", scope)
    return torch.fx.symbolic_trace(scope["program"])


ORIGINS: dict[str, Callable[[Callable[..., Any], Tensors], torch.fx.GraphModule]] = {
    "aten": aten_graph,
    "torch": torch_graph,
}
"""Ways to make a graph."""


def run_graphs(
    op: Any, origin: str, *, count: int = 2, jit: Callable[[Any], Any] = tj.jit
) -> Result:
    """Trace and compare ``count`` samples of an operation, each graph called twice.

    Samples that cannot be traced, or raise in eager, count as ``eager_errors``.
    """
    result = Result(f"{full_name(op)} ({origin})")
    arguments = sample_arguments(op, torch.float32, count, grad=False)
    for number, sample in enumerate(arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result.samples += 1
            hold_graph(op, origin, sample, jit, result, f"sample {number}")
    return result


def hold_graph(
    op: Any,
    origin: str,
    arguments: Any,
    jit: Callable[[Any], Any],
    result: Result,
    where: str,
) -> None:
    """Compare one sample, as a graph made in the way ``origin``."""
    function, tensors = _over_tensors(op.op, arguments)
    try:
        graph = ORIGINS[origin](function, tensors)
        first, second = (seeded(graph, *clone_tree((tensors, {}))) for _ in range(2))
    except Exception:
        result.samples -= 1
        result.eager_errors += 1
        return
    values = full_name(op) not in UNDEFINED and not differences(first, second)
    jitted = jit(graph)
    try:
        for _ in range(2):
            result.differs(where, compare(graph, jitted, tensors, {}, values=values))
    except Exception as error:
        result.raises(where, error)
    stats = tj.stats(jitted)
    if not stats.fallbacks and (stats.hits, stats.misses) != (1, 1):
        what = f"{stats.hits} hits, {stats.misses} misses"
        result.problems.append(Problem(Kind.RESULT, where, what))
    result.falls_back(where, (f.reason for f in stats.fallbacks))


def _over_tensors(fn: Callable[..., Any], arguments: Any) -> tuple[Callable[..., Any], Tensors]:
    """Close ``fn`` over the other ``arguments``, as a function of the tensors, and return these."""
    flat, spec = pytree.tree_flatten(arguments)
    places = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]

    def function(*tensors: Any) -> Any:
        filled = list(flat)
        for i, tensor in zip(places, tensors, strict=True):
            filled[i] = tensor
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return fn(*args, **kwargs)

    return function, tuple(flat[i] for i in places)


def module_graphs(info: Any, *, training: bool, count: int = 2) -> Iterator[tuple[Any, Any]]:
    """For samples of a module_db entry, yield a maker of graphs that call the module, and
    arguments.
    """
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device=device(), dtype=torch.float32, requires_grad=training, training=training
    )
    for sample in itertools.islice(inputs, count):
        if sample.forward_input is not None:
            given = sample.forward_input
            yield _maker(info, sample, training), (*given.args, *given.kwargs.values())


def _maker(info: Any, sample: Any, training: bool) -> Callable[[], torch.fx.GraphModule]:
    def make() -> torch.fx.GraphModule:
        torch.manual_seed(3)
        given, call = sample.constructor_input, sample.forward_input
        root = torch.nn.Module()
        root.leaf = info.module_cls(*given.args, **given.kwargs)
        graph = torch.fx.Graph()
        args = tuple(graph.placeholder(f"a{i}") for i in range(len(call.args)))
        kwargs: Any = {name: graph.placeholder(f"k_{name}") for name in call.kwargs}
        graph.output(graph.call_module("leaf", args, kwargs))
        return torch.fx.GraphModule(root, graph).train(training)

    return make

"""Calls of jitted programs under all of PyTorch's modes and tracers, against eager.

Each mode runs a jitted program without entries (cold), and one with an entry for the same arguments
(warm), whose guards must fail where it does not hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.sampled(4)

V = torch.linspace(-1.0, 1.5, 3)
ROWS = torch.linspace(-2.0, 2.0, 6).reshape(2, 3)


def poly(x: torch.Tensor) -> torch.Tensor:
    y = (x * x).sin() + x
    return y.sum()


Program = Callable[[torch.Tensor], Any]


class Caller(nn.Module):
    """Module that calls a function."""

    def __init__(self, f: Program) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: torch.Tensor) -> Any:
        return self.f(x)


class Seen(TorchDispatchMode):
    """Mode that records operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class CosForSin(TorchFunctionMode):
    """Mode that runs ``cos`` for ``sin``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "sin":
            func = torch.cos
        return func(*args, **(kwargs or {}))


# ------------------------------------------------------------------- the original runs under these


def under_functional(transform: Callable[..., Any]) -> Callable[[Program], Any]:
    return lambda f: transform(f)(V)


def per_row(f: Program) -> Any:
    return torch.vmap(f)(ROWS), torch.vmap(torch.func.grad(f))(ROWS)


def pushed_forward(f: Program) -> Any:
    return torch.func.jvp(f, (V,), (torch.ones(3),))


def pulled_back(f: Program) -> Any:
    out, pull = torch.func.vjp(f, V)
    return out, pull(torch.tensor(2.0))


def linearized(f: Program) -> Any:
    out, push = torch.func.linearize(f, V.double())  # calls f plainly first
    return out, push(torch.ones(3).double())


def dual(f: Program) -> Any:
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(f(forward_ad.make_dual(V, torch.ones(3))))
        return out.primal, out.tangent


def plain_in_dual_level(f: Program) -> Any:
    with forward_ad.dual_level():
        return f(V)


def dispatch_mode(f: Program) -> Any:
    with Seen() as seen:
        out = f(V)
    return out, seen.names


def flops(f: Program) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        return f(V), counter.get_total_flops()


def fake(f: Program) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode() as mode:
        out = f(torch.empty(3))
        converted = f(mode.from_tensor(V))
    assert isinstance(out, FakeTensor)
    assert isinstance(converted, FakeTensor)
    return out.shape, out.dtype, converted.device


def real_in_fake_mode(f: Program) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        out = f(V)
    assert isinstance(out, FakeTensor)
    return out.shape


def graph_of(f: Program) -> Any:
    results = []
    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(f, tracing_mode=mode)(V)
        results.append(([str(n.target) for n in _calls(graph)], graph(V + 1)))
    return results


def exported(f: Program) -> Any:
    program = torch.export.export(Caller(f), (V,), strict=False)
    return [str(n.target) for n in _calls(program)], program.module()(V + 1)


def _calls(program: Any) -> list[Any]:
    return [n for n in program.graph.nodes if n.op == "call_function"]


def symbolic(f: Program) -> Any:
    graph = torch.fx.symbolic_trace(lambda x: f(x) * 2)
    return [str(n.target) for n in _calls(graph)], graph(V + 1)


def fake_outside(f: Program) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    out = f(FakeTensorMode().from_tensor(V))
    assert isinstance(out, FakeTensor)
    return out.shape


def traced(f: Program) -> Any:
    graph = torch.jit.trace(f, (V,), check_trace=False)
    return [n.kind() for n in graph.graph.nodes()], graph(V + 1)


def function_mode(f: Program) -> Any:
    with CosForSin():
        return f(V)


INTERPRETED: dict[str, Callable[[Program], Any]] = {
    "vmap": per_row,
    "grad": under_functional(torch.func.grad),
    "jacrev": under_functional(torch.func.jacrev),
    "jacfwd": under_functional(torch.func.jacfwd),
    "hessian": under_functional(torch.func.hessian),
    "functionalize": under_functional(torch.func.functionalize),
    "jvp": pushed_forward,
    "vjp": pulled_back,
    "linearize": linearized,
    "forward AD": dual,
    "dual level": plain_in_dual_level,
    "dispatch mode": dispatch_mode,
    "flop counter": flops,
    "fake tensors": fake,
    "real tensors in fake mode": real_in_fake_mode,
    "make_fx": graph_of,
    "fake tensors outside": fake_outside,
    "symbolic_trace": symbolic,
    "export": exported,
    "jit.trace": traced,
    "function mode": function_mode,
}


# ------------------------------------------------------------------- compiled under these


def compiled_around(fullgraph: bool) -> Callable[[Program], Any]:
    def run(f: Program) -> Any:
        graphs: list[Any] = []

        def backend(graph: Any, examples: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        torch._dynamo.reset()
        compiled = torch.compile(lambda x: f(x) * 2, backend=backend, fullgraph=fullgraph)
        x = V.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(compiled(x), x)
        ((_, *calls),) = (list(graph.graph.nodes) for graph in graphs)  # one graph
        return compiled(V), gradient, len(calls)

    return run


def strictly_exported(f: Program) -> Any:
    program = torch.export.export(Caller(f), (V,), strict=True)
    return [str(n.target) for n in _calls(program)], program.module()(V + 1)


def jit_around(f: Program) -> Any:
    outer = tj.jit(lambda x: f(x) * 2)
    x = V.clone().requires_grad_()
    results = outer(V), *torch.autograd.grad(outer(x), x)
    return results, len(tj.last_trace(outer, stage="ACQUIRED").calls)


def checkpointed(reentrant: bool) -> Callable[[Program], Any]:
    def run(f: Program) -> Any:
        x = V.clone().requires_grad_()
        out = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=reentrant)
        out.backward()
        return out, x.grad

    return run


def saved_tensors(f: Program) -> Any:
    saved: list[Any] = []

    def pack(tensor: torch.Tensor) -> Any:
        saved.append(tensor.shape)
        return tensor * 2

    x = V.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t / 2):
        out = f(x)
    return out, *torch.autograd.grad(out, x), saved


def anomalies(f: Program) -> Any:
    x = V.clone().requires_grad_()
    with torch.autograd.detect_anomaly(check_nan=True):
        out = f(x)
        return out, *torch.autograd.grad(out, x)


def twice_differentiated(f: Program) -> Any:
    x = V.clone().requires_grad_()
    out = f(x)
    (first,) = torch.autograd.grad(out, x, create_graph=True)
    return out, first, *torch.autograd.grad(first.sum(), x)


COMPILED: dict[str, Callable[[Program], Any]] = {
    "torch.compile": compiled_around(fullgraph=False),
    "torch.compile fullgraph": compiled_around(fullgraph=True),
    "strict export": strictly_exported,
    "tj.jit": jit_around,
    "checkpoint": checkpointed(reentrant=False),
    "reentrant checkpoint": checkpointed(reentrant=True),
    "saved tensors hooks": saved_tensors,
    "anomaly mode": anomalies,
    "create_graph": twice_differentiated,
}


# ------------------------------------------------------------------- the matrix


def make(frontend: str) -> Any:
    program = torch.fx.symbolic_trace(poly) if frontend == "fx" else poly
    return tj.jit(program, frontend=frontend)


def warm_up(jitted: Any) -> None:
    """Compile entries for all arguments that the modes pass, with and without gradients."""
    for x in (V, ROWS[0], V.clone().requires_grad_()):
        jitted(x)
        jitted(x)


def outcome(mode: Callable[[Program], Any], f: Program) -> tuple[Any, list[str]]:
    """Result of ``f`` under ``mode``, and tj's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = mode(f)
    messages = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
    return result, messages


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("frontend", ["dynamo", "dynamo_hook", "fx"])
@pytest.mark.parametrize("name", INTERPRETED)
def test_the_original_runs(name: str, frontend: str, warm: bool) -> None:
    jitted = make(frontend)
    if warm:
        warm_up(jitted)
    hits, misses = tj.stats(jitted).hits, tj.stats(jitted).misses
    expected, _ = outcome(INTERPRETED[name], poly)
    got, messages = outcome(INTERPRETED[name], jitted)
    assert_equal(got, expected)
    if frontend == "fx" or (frontend == "dynamo" and name != "function mode"):
        assert tj.stats(jitted).hits == hits
        assert tj.stats(jitted).misses == misses + (name == "linearize")
        assert len(messages) == 1
        assert "called under" in messages[0]
    assert_equal(jitted(V), poly(V))
    assert_equal(jitted(V), poly(V))


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("frontend", ["dynamo", "dynamo_hook", "fx"])
@pytest.mark.parametrize("name", COMPILED)
def test_it_stays_compiled(name: str, frontend: str, warm: bool) -> None:
    jitted = make(frontend)
    if warm:
        warm_up(jitted)
    expected, _ = outcome(COMPILED[name], poly)
    got, messages = outcome(COMPILED[name], jitted)
    assert_equal(got, expected)
    assert messages == []
    assert_equal(jitted(V), poly(V))


@pytest.mark.parametrize("frontend", ["dynamo", "fx"])
@pytest.mark.parametrize("name", ["vmap", "grad", "fake", "dispatch", "trace", "dual"])
def test_programs_without_tensors(name: str, frontend: str) -> None:
    """Such a program has no argument whose guards would show a mode."""
    graph = torch.fx.Graph()
    ones = graph.call_function(torch.ones, (3,))
    graph.output(graph.call_function(torch.mul, (ones, 2)))
    jitted = tj.jit(torch.fx.GraphModule(nn.Module(), graph), frontend=frontend)
    for _ in range(2):
        assert_equal(jitted(), torch.ones(3) * 2)
    modes: dict[str, Callable[[], Any]] = {
        "vmap": lambda: torch.vmap(lambda x: jitted() + x)(ROWS),
        "grad": lambda: torch.func.grad(lambda x: (jitted() * x).sum())(V),
        "fake": lambda: fake_ones(jitted),
        "dispatch": lambda: dispatch_mode(lambda x: jitted()),
        "trace": lambda: torch.jit.trace(lambda x: jitted() + x, (V,), check_trace=False),
        "dual": lambda: plain_in_dual_level(lambda x: jitted()),
    }
    _, messages = outcome(lambda f: modes[name](), poly)
    assert len(messages) == 1
    assert tj.stats(jitted).hits == 1


def fake_ones(f: Callable[[], Any]) -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        assert isinstance(f(), FakeTensor)

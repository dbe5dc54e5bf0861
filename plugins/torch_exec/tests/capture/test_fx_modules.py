"""Frontend ``fx`` and modules: a graph's module has live state and may be edited."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.graphs import hand_built
from tj_conformance.oracle.compare import assert_equal, assert_jits, seeded
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

X = torch.arange(6.0).reshape(2, 3)

jit = functools.partial(tj.jit, frontend="fx")
twice = functools.partial(assert_jits, jit=jit)


def names(jitted: Any) -> list[str]:
    return [call.symbol.name for call in tj.last_trace(jitted, stage="ACQUIRED").calls]


# --------------------------------------------------------------------------- state of the module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))
        self.plain = torch.full((4,), 0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.linear(x)).relu()) * self.scale + self.shift + self.plain


def blocks() -> tuple[fx.GraphModule, fx.GraphModule, Any]:
    """Two equal GraphModules, and the second one jitted."""
    reference, module = fx.symbolic_trace(Block()), fx.symbolic_trace(Block())
    return reference, module, jit(module)


def step(module: Any, x: torch.Tensor = X) -> Any:
    """Output, gradients and state after one step."""
    module.zero_grad()
    out = seeded(module, (x,), {})
    if out.requires_grad:
        out.square().sum().backward()
    return out, [p.grad for p in module.parameters()], dict(module.state_dict())


def test_leaf_modules_are_their_torch_level_calls() -> None:
    reference, _, jitted = blocks()
    for _ in range(3):
        assert_equal(step(jitted), step(reference))
    assert names(jitted) == [
        "linear",
        "add_",
        "batch_norm",
        "relu",
        "dropout",
        "mul",
        "add",
        "add",
    ][: len(names(jitted))] or set(names(jitted)) >= {
        "nn.functional.linear",
        "nn.functional.batch_norm",
    }
    call = tj.last_trace(jitted, stage="ACQUIRED").calls[0]
    assert call.source is not None
    assert call.source.module_path == "linear"
    inputs = [p.name for p in tj.last_trace(jitted).inputs]
    assert {"linear_weight", "norm_running_mean", "scale", "shift", "plain"} <= set(inputs)
    assert (tj.stats(jitted).hits, tj.stats(jitted).fallbacks) == (2, ())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "eval": lambda m: m.eval(),
    "only norm in eval": lambda m: m.norm.eval(),
    "probability": lambda m: setattr(m.drop, "p", 0.25),
    "momentum": lambda m: setattr(m.norm, "momentum", 0.5),
    "double": lambda m: m.double(),
    "frozen": lambda m: m.requires_grad_(False),
    "load_state_dict": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "assigned": lambda m: m.load_state_dict(
        {k: v + 1 for k, v in m.state_dict().items()}, assign=True
    ),
    "parameter replaced": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 3))),
    "bias removed": lambda m: setattr(m.linear, "bias", None),
    "module replaced": lambda m: setattr(m, "linear", nn.Linear(3, 4, bias=False)),
    "buffer replaced": lambda m: setattr(m, "shift", torch.ones(4)),
    "plain tensor replaced": lambda m: setattr(m, "plain", torch.ones(4)),
    "tied": lambda m: setattr(m, "shift", m.plain),
    "data": lambda m: setattr(m.scale, "data", torch.full((4,), 2.0)),
    "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1).step(),
    "written": lambda m: m.shift.add_(3),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_in_the_module_is_seen(change: str) -> None:
    reference, _, jitted = blocks()
    x = X
    for module in (reference, jitted):
        step(module)
        torch.manual_seed(1)
        CHANGES[change](module)
    if change == "double":
        x = X.double()
    for _ in range(2):
        assert_equal(step(jitted, x), step(reference, x))
    assert tj.stats(jitted).fallbacks == ()


def test_hooks_of_leaf_modules() -> None:
    """A hook is Python code that the graph does not show: Dynamo compiles through it."""
    reference, _, jitted = blocks()
    for module in (reference, jitted):
        step(module)
        module.linear.register_forward_hook(lambda module, args, out: out * 2)
    for _ in range(2):
        assert_equal(step(jitted), step(reference))
    assert tj.stats(jitted).fallbacks == ()


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "global"])
def test_hooks_of_the_module_itself(kind: str) -> None:
    reference, _, jitted = blocks()
    log: list[str] = []
    x = X.clone().requires_grad_()  # else PyTorch warns that the hook fires early

    def hook(module: Any, *args: Any) -> None:
        log.append(type(module).__name__)

    handles = []
    for module in (reference, jitted):
        step(module, x)
        if kind != "global":
            handles.append(getattr(module, f"register_{kind}_hook")(hook))
    if kind == "global":
        handles.append(nn.modules.module.register_module_forward_hook(hook))
    try:
        for _ in range(2):
            expected = step(reference, x)
            theirs, log[:] = list(log), []
            assert_equal(step(jitted, x), expected)
            mine, log[:] = list(log), []
            assert mine == theirs
    finally:
        for handle in handles:
            handle.remove()


def test_a_module_of_pythons_own_making() -> None:
    """A leaf that counts its calls: its forward runs once per call, and computes another value."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    def build(graph: fx.Graph) -> Any:
        return graph.call_module("counter", (graph.placeholder("x"),))

    root = nn.Module()
    root.counter = Counter()
    jitted = jit(hand_built(build, root))
    for n in range(1, 5):
        assert_equal(jitted(X), X * n)
    assert jitted.counter.calls == 4


def logged(x: torch.Tensor) -> torch.Tensor:
    LOG.append(x.shape)
    return x + len(LOG)


LOG: list[Any] = []


def test_functions_of_the_user_keep_their_side_effects() -> None:
    """Functions that `torch.fx.wrap` puts into graphs."""

    def build(graph: fx.Graph) -> Any:
        called = graph.call_function(logged, (graph.placeholder("x"),))
        return graph.call_function(torch.mul, (called, 2))

    jitted = jit(hand_built(build))
    LOG.clear()
    for n in range(1, 4):
        assert_equal(jitted(X), (X + n) * 2)
        assert len(LOG) == n


def test_nested_graphs_are_one_program() -> None:
    inner = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    root = nn.Module()
    root.inner = inner

    def build(graph: fx.Graph) -> Any:
        x = graph.placeholder("x")
        once = graph.call_module("inner", (x,))
        return graph.call_module("inner", (), {str(_input(inner).target): once})

    jitted = twice(hand_built(build, root), X)
    assert len(names(jitted)) == 4


def _input(module: fx.GraphModule) -> fx.Node:
    return next(iter(module.graph.nodes))


def test_split_modules() -> None:
    from torch.fx.passes.split_module import split_module

    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)))
    order = {node: i for i, node in enumerate(traced.graph.nodes)}
    twice(split_module(traced, traced, lambda node: order[node] // 3), X)


def test_recurrent_and_attention_modules() -> None:
    for leaf, args in (
        (nn.LSTM(3, 4, num_layers=2, bidirectional=True), (X[None],)),
        (nn.MultiheadAttention(4, 2, batch_first=True).eval(), (torch.randn(2, 3, 4),) * 3),
    ):
        root = nn.Module()
        root.leaf = leaf

        def build(graph: fx.Graph, args: Any = args) -> Any:
            inputs = [graph.placeholder(f"a{i}") for i in range(len(args))]
            return graph.call_module("leaf", tuple(inputs))

        twice(hand_built(build, root), *args)


def test_control_flow_operators() -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    graph = make_fx(f, tracing_mode="symbolic")(X)
    jitted = jit(graph)
    for x in (X, -X, X):
        assert_equal(jitted(x), f(x))
    assert tj.stats(jitted).fallbacks == ()


# --------------------------------------------------------------------------- editing, copying


def test_an_edited_and_recompiled_graph_is_noticed() -> None:
    module = fx.symbolic_trace(lambda x: x + 1)
    jitted = jit(module)
    assert_equal(jitted(X), X + 1)
    for owner in (module, jitted):
        for node in module.graph.nodes:
            if node.op == "call_function":
                node.args = (node.args[0], node.args[1] + 1)
        assert_equal(jitted(X), module(X))  # not recompiled: PyTorch runs the old code as well
        owner.recompile()
        assert_equal(jitted(X), module(X))
    assert_equal(jitted(X), X + 3)
    assert tj.stats(jitted).entries == 1
    assert tj.stats(jitted).invalidated == 2


def test_a_graph_edited_before_without_recompile() -> None:
    module = fx.symbolic_trace(lambda x: x + 1)
    node = next(n for n in module.graph.nodes if n.op == "call_function")
    node.args = (node.args[0], 5)
    with pytest.warns(tj.TjWarning, match="call recompile"):
        jitted = jit(module)
    assert_equal(jitted(X), X + 1)
    module.recompile()
    assert_equal(jitted(X), X + 5)
    assert tj.stats(jitted).misses == 1


def test_a_forward_of_ones_own() -> None:
    module = fx.symbolic_trace(lambda x: x + 1)
    jitted = jit(module)
    assert_equal(jitted(X), X + 1)
    module.forward = lambda x: x * 10
    with pytest.warns(tj.TjWarning, match="recompile"):
        assert_equal(jitted(X), X * 10)


def test_copies() -> None:
    torch.manual_seed(0)
    # PyTorch does not pickle graphs of functions whose annotations are texts.
    module = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()))
    reference, jitted = copy.deepcopy(module), jit(module)
    step(jitted)
    step(reference)
    for other in (copy.deepcopy(jitted), pickle.loads(pickle.dumps(jitted))):
        assert tj.stats(other).calls == 0
        assert isinstance(other, fx.GraphModule)
        assert_equal(step(other), step(copy.deepcopy(reference)))
        assert tj.stats(other).misses == 1
    assert list(jitted.state_dict()) == list(module.state_dict())
    assert jitted.code == module.code


def test_many_entries_are_evicted_loudly() -> None:
    jitted = jit(fx.symbolic_trace(lambda x: x + 1), max_entries=2)
    with pytest.warns(tj.TjWarning, match="more than 2 compiled entries"):
        for n in range(1, 4):
            jitted(torch.ones(n))
    assert (tj.stats(jitted).entries, tj.stats(jitted).evicted) == (2, 1)


def test_regions_of_a_captured_graph() -> None:
    from torch._dynamo.functional_export import dynamo_graph_capture_for_export

    module = Block()

    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = module

        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                y = self.block(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = self.block.linear(x)
            return y, z + y

    for model in (Regions(), Regions().eval()):
        captured = dynamo_graph_capture_for_export(model)(X)
        twice(captured, X)


def test_reports() -> None:
    tracer = fx.Tracer()
    tracer.record_stack_traces = True
    root = Block().eval()
    jitted = jit(fx.GraphModule(root, tracer.trace(root)))
    with torch.no_grad():
        jitted(X)
    texts = [str(g) for g in tj.guards(jitted)]
    assert "x has cpu f32[2, 3]" in texts
    assert "grad is False" in texts
    assert any("drop" in text and "p=0.5" in text for text in texts)
    source = tj.last_trace(jitted, stage="ACQUIRED").calls[-1].source
    assert source is not None
    assert source.file == __file__
    assert "self.plain" in source.text
    assert "torch.nn.functional.linear" in str(tj.explain(jitted))


def test_a_dropped_module_is_freed() -> None:
    import gc
    import weakref

    _, module, jitted = blocks()
    step(jitted)
    found = weakref.ref(module.linear)
    del module, jitted
    gc.collect()
    assert found() is None

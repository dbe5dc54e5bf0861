"""The frontend ``fx``: FX graphs of every origin run as they do in eager, with their state live."""

from __future__ import annotations

import copy
import operator
import pickle
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_torch.conformance.oracle import assert_equal, compare, seeded
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

X = torch.arange(6.0).reshape(2, 3)
Y = torch.ones(2, 3) * 0.5


def jit(program: Any, **keywords: Any) -> Any:
    return tj.jit(program, frontend="fx", **keywords)


def twice(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Compiled and again, as eager, mutated arguments included; the jitted module."""
    jitted = jit(module)
    for _ in range(2):
        assert compare(module, jitted, args, kwargs) == []
    stats = tj.stats(jitted)
    assert (stats.hits, stats.misses, stats.fallbacks) == (1, 1, ())
    return jitted


def names(jitted: Any) -> list[str]:
    return [call.symbol.name for call in tj.last_trace(jitted, stage="ACQUIRED").calls]


def hand_built(build: Callable[[fx.Graph], Any], root: Any = None) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(build(graph))
    return fx.GraphModule(root or nn.Module(), graph)


# --------------------------------------------------------------------------- programs

Pair = namedtuple("Pair", "first second")


def views(x: torch.Tensor) -> Any:
    y = x.t()
    y.mul_(2)
    return x.T, y.real, x[0], x[..., 1:], x[:, None]


def structures(x: torch.Tensor) -> Any:
    largest = torch.max(x, 1)
    parts = x.split(1, 1)
    return {
        "max": largest,
        "values": largest.values,
        "indices": largest[1],
        "parts": [parts[0], (parts[1:], None, 3)],
        "all": parts,
        "size": x.size(),
        "shape": x.shape[0],
        "pair": Pair(x + 1, x.dim()),
    }


def sizes(x: torch.Tensor) -> Any:
    n, m = x.size(0), x.shape[1]
    return x.view(m * n).reshape(-1, n), x.expand(4, n, m), x.shape.numel() * 2


def in_place(x: torch.Tensor) -> Any:
    x.add_(1)
    y = x[:, 1:].mul_(3)
    torch.relu_(x)
    x.t_()
    return x.sum(0), x.T, y


def factories(x: torch.Tensor) -> Any:
    zeros = torch.zeros_like(x)
    return zeros + x.new_ones(3), x.to(torch.float64), x.type(torch.int32), x.dtype, x.device


def random(x: torch.Tensor) -> Any:
    return torch.rand_like(x) + F.dropout(x, 0.5, True)


def keywords(x: torch.Tensor) -> Any:
    return F.softmax(x, dim=-1, dtype=torch.float64), torch.sum(x, dim=0, keepdim=True)


def indexed(x: torch.Tensor) -> Any:
    return x[x > 2], x.sum().item()


PROGRAMS = [views, structures, sizes, in_place, factories, random, keywords]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_traced_programs(program: Callable[..., Any]) -> None:
    twice(fx.symbolic_trace(program), X)
    twice(fx.symbolic_trace(program), torch.randn(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_aten_programs(program: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    flat = make_fx(lambda x: fx.graph.pytree.tree_leaves(program(x)))(X.clone())
    jitted = twice(flat, X)
    symbols = tj.last_trace(jitted, stage="ACQUIRED").calls
    assert {call.symbol.namespace for call in symbols} == {"aten"}


def test_results_that_depend_on_data() -> None:
    jitted = twice(fx.symbolic_trace(indexed), X)
    assert_equal(jitted(-X), indexed(-X))  # no guard has looked at the data
    assert tj.stats(jitted).entries == 1


def test_metadata_of_the_tracing_is_not_believed() -> None:
    """`make_fx` has noted shapes and data types; the graph runs with others as well."""
    graph = make_fx(lambda x, y: (x + y).sum(-1))(X, Y)
    jitted = jit(graph)
    for x in (X, torch.randn(5, 3), torch.randn(4, 2, 3, dtype=torch.float64), torch.ones(3).int()):
        assert_equal(jitted(x, torch.ones(3)), graph(x, torch.ones(3)))
    assert tj.stats(jitted).entries == 4
    assert str(tj.last_trace(jitted).inputs[0].dtype) == "i32"


def test_placeholders_with_defaults() -> None:
    def f(x: Any, y: Any = 3, scale: float = 2.0) -> Any:
        return x * scale + y

    graph = fx.symbolic_trace(f)
    jitted = jit(graph)
    for args, kwargs in (((X,), {}), ((X, 1), {}), ((X,), {"scale": 0.5}), ((), {"y": Y, "x": X})):
        assert_equal(jitted(*args, **kwargs), graph(*args, **kwargs))
        assert_equal(jitted(*args, **kwargs), graph(*args, **kwargs))
    for g in (graph, jitted):
        with pytest.raises(TypeError, match="nonsense"):
            g(X, nonsense=1)
    assert (tj.stats(jitted).entries, tj.stats(jitted).fallbacks) == (4, ())


def test_items_are_set() -> None:
    def build(graph: fx.Graph) -> Any:
        x = graph.placeholder("x")
        y = graph.call_function(torch.neg, (x,))
        graph.call_function(operator.setitem, (y, (slice(None), 0), x.graph.placeholder("v")))
        return graph.call_function(operator.imul, (y, 2)), y

    twice(hand_built(build), X, torch.ones(2))
    twice(hand_built(build), X, 3.0)


def test_variadic_placeholders() -> None:
    def build(graph: fx.Graph) -> Any:
        args, kwargs = graph.placeholder("*args"), graph.placeholder("**kwargs")
        item = graph.call_function(operator.getitem, (args, 1))
        named = graph.call_function(operator.getitem, (kwargs, "y"))
        return graph.call_function(torch.add, (item, named))

    twice(hand_built(build), X, X + 1, y=Y)


@pytest.mark.parametrize(
    "value",
    [2, 2.0, -0.0, float("nan"), True, None, "mean", torch.float64, torch.device("cpu"), 1 + 2j],
    ids=repr,
)
def test_arguments_that_are_no_tensors_are_guarded_by_value(value: Any) -> None:
    def build(graph: fx.Graph) -> Any:
        return graph.placeholder("x"), [graph.placeholder("value")]

    graph = hand_built(build)
    jitted = jit(graph)
    for given in (value, 5, value):
        (x, (got,)) = jitted(X, given)
        assert x is X
        assert repr(got) == repr(given)
        assert type(got) is type(given)
    assert tj.stats(jitted).entries == 2


def test_numbers_equal_to_others() -> None:
    graph = fx.symbolic_trace(lambda x, n: x * n)
    jitted = jit(graph)
    for n in (1, True, 1.0, 0.0, -0.0, 0, False):
        assert_equal(jitted(torch.ones(2, dtype=torch.int32), n), torch.ones(2).int() * n)
    assert tj.stats(jitted).entries == 7


def test_containers_as_arguments() -> None:
    graph = fx.symbolic_trace(lambda v: v["a"] + v["b"][0] * v["b"][1])
    jitted = twice(graph, {"a": X, "b": [Y, 3]})
    assert_equal(jitted({"a": X, "b": [Y, 4]}), X + Y * 4)
    assert_equal(jitted({"b": [Y, 4], "a": X}), X + Y * 4)  # another order: another entry
    with pytest.raises(KeyError):
        jitted({"a": X})


def test_pytrees_of_the_graphs_own_code() -> None:
    graph = make_fx(lambda x, k: {"out": [x + k["y"], (x,)]})(X, {"y": Y})
    twice(graph, X, {"y": Y})


@pytest.mark.parametrize(
    "build",
    [
        lambda g: None,
        lambda g: (),
        lambda g: g.placeholder("x"),
        lambda g: [(x := g.placeholder("x")), x, {"again": (x, 2.5)}],
        lambda g: (g.placeholder("x") and None, "text", slice(None)),
    ],
    ids=["none", "empty", "input", "repeated", "constants"],
)
def test_graphs_that_compute_nothing(build: Callable[[fx.Graph], Any]) -> None:
    graph = hand_built(build)
    args = (X,) if graph.graph.find_nodes(op="placeholder") else ()
    twice(graph, *args)


def test_symbolic_sizes_of_the_tracing() -> None:
    graph = make_fx(lambda x: x.view(x.shape[0] * 3).sum() / x.shape[0], tracing_mode="symbolic")(X)
    assert graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)
    jitted = jit(graph)
    for n in (2, 4, 2, 4):
        x = torch.randn(n, 3)
        assert_equal(jitted(x), graph(x))
    assert (tj.stats(jitted).entries, tj.stats(jitted).hits) == (2, 2)


def test_flags_that_choose_kernels_are_guarded() -> None:
    graph = make_fx(lambda x, w: torch.mm(x, w))(X, X.t())
    jitted = jit(graph)
    assert_equal(jitted(X, X.t()), X @ X.t())
    torch.backends.mkldnn.set_flags(False)
    try:
        assert_equal(jitted(X, X.t()), X @ X.t())
    finally:
        torch.backends.mkldnn.set_flags(True)
    assert tj.stats(jitted).entries == 2


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
    """A graph, an equal one, and the second jitted."""
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
    """A hook is Python that the graph does not show: Dynamo compiles through it."""
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
    """As `torch.fx.wrap` puts them into graphs."""

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


# --------------------------------------------------------------------------- aliases, contexts


def test_the_same_object_twice() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        z = y * 2
        y.t_()
        return x.sum(0), z

    graph = fx.symbolic_trace(f)
    jitted = jit(graph)
    for same in (True, False, True, False):
        mine, theirs = torch.ones(2, 3), torch.ones(2, 3)
        a = jitted(mine, mine if same else mine.clone())
        b = graph(theirs, theirs if same else theirs.clone())
        assert_equal((a, mine), (b, theirs))
    assert tj.stats(jitted).entries == 2
    assert tj.stats(jitted).fallbacks == ()


def test_overlapping_views() -> None:
    graph = fx.symbolic_trace(lambda x, y: (x.add_(1), y * 2))
    jitted = jit(graph)
    mine, theirs = torch.zeros(4), torch.zeros(4)
    for _ in range(2):
        assert_equal(jitted(mine[:3], mine[1:]), graph(theirs[:3], theirs[1:]))
        assert_equal(jitted(torch.ones(3), torch.ones(3)), graph(torch.ones(3), torch.ones(3)))
    assert_equal(mine, theirs)


@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("meta"),
    ],
    ids=["no_grad", "inference", "autocast", "device"],
)
def test_ambient_contexts(context: Callable[[], Any]) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.mm(x, w.t()) * 2, torch.ops.aten.zeros.default([2])

    def build(graph: fx.Graph) -> Any:
        x, w = graph.placeholder("x"), graph.placeholder("w")
        product = graph.call_function(torch.mm, (x, graph.call_method("t", (w,))))
        return product, graph.call_function(torch.zeros, (2,))

    graph = hand_built(build)
    jitted = jit(graph)
    w = torch.ones(4, 3, requires_grad=True)
    for _ in range(2):
        assert_equal(jitted(X, w), graph(X, w))
        with context():
            got, expected = jitted(X, w), graph(X, w)
            assert [t.device for t in got] == [t.device for t in expected]
            assert_equal(got[0], expected[0])
    assert tj.stats(jitted).fallbacks == ()
    assert (tj.stats(jitted).misses, tj.stats(jitted).hits) == (2, 2)


def test_global_settings_are_guarded() -> None:
    graph = fx.symbolic_trace(lambda x: x / 3 + torch.tensor(1))
    jitted = jit(graph)
    integers = torch.arange(3)
    assert_equal(jitted(integers), graph(integers))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert_equal(jitted(integers), graph(integers))
    finally:
        torch.set_default_dtype(before)
    assert tj.stats(jitted).entries == 2


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


# --------------------------------------------------------------------------- tensors of other kinds


def test_subclasses_and_sparse_tensors_are_left_to_dynamo() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    graph = fx.symbolic_trace(lambda x: x * 2)
    jitted = jit(graph)
    assert_equal(jitted(X), X * 2)
    two = TwoTensor(X, Y)
    assert_equal(jitted(two).b, two.b * 2)
    with pytest.warns(tj.TjWarning, match="sparse"):
        assert_equal(jit(graph)(X.to_sparse()).to_dense(), X * 2)


@pytest.mark.parametrize("kind", ["conj", "neg", "strides", "inference", "parameter"])
def test_metadata_of_tensors_is_guarded(kind: str) -> None:
    plain = torch.randn(2, 2, dtype=torch.complex64)
    with torch.inference_mode():
        inference = plain.clone()
    other = {
        "conj": plain.conj(),
        "neg": plain.conj().imag,
        "strides": plain.t(),
        "inference": inference,
        "parameter": nn.Parameter(plain.clone()),
    }[kind]
    graph = fx.symbolic_trace(lambda x: (x * 2, x.reshape(-1)))
    jitted = jit(graph)
    for x in (plain, other, plain, other):
        assert_equal(jitted(x), graph(x))
    assert tj.stats(jitted).entries == 2


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


# --------------------------------------------------------------------------- errors, reports


def test_what_the_program_raises() -> None:
    jitted = jit(fx.symbolic_trace(lambda x, y: torch.mm(x, y)))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        jitted(X, X)
    assert_equal(jitted(X, X.t()), X @ X.t())
    assert tj.stats(jitted).fallbacks == ()


def test_a_value_that_decides_runs_the_original() -> None:
    jitted = jit(fx.symbolic_trace(lambda x, y: torch.equal(x, y)))
    with pytest.warns(tj.TjWarning, match="not captured: torch.equal"):
        assert jitted(X, X) is True
    assert jitted(X, Y) is False


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


def test_a_stack_without_source_text() -> None:
    graph = fx.symbolic_trace(lambda x: x + 1)
    frames = ('"/here/model.py", line 7, in forward', '"/there/torch_like.py", line 9, in run')
    for node in graph.graph.nodes:
        node.stack_trace = "".join(f"  File {frame}\n" for frame in reversed(frames))
    jitted = jit(graph)
    jitted(X)
    (call,) = tj.last_trace(jitted, stage="ACQUIRED").calls
    assert call.source is not None
    assert (call.source.file, call.source.line, call.source.text) == ("/here/model.py", 7, "")


def test_only_graphs_are_taken() -> None:
    with pytest.raises(tj.TjError, match="takes a GraphModule or an ExportedProgram, not function"):
        jit(lambda x: x)
    with pytest.raises(tj.TjError, match="not Linear"):
        jit(nn.Linear(2, 2))


def test_examples_are_not_kept_alive() -> None:
    import gc
    import weakref

    jitted = jit(fx.symbolic_trace(lambda x: x + 1))
    x = torch.ones(3)
    found = weakref.ref(x)
    jitted(x)
    tj.guards(jitted)
    del x
    gc.collect()
    assert found() is None


def test_a_dropped_module_is_freed() -> None:
    import gc
    import weakref

    _, module, jitted = blocks()
    step(jitted)
    found = weakref.ref(module.linear)
    del module, jitted
    gc.collect()
    assert found() is None

"""Frontend ``fx``: FX graphs of every origin against eager."""

from __future__ import annotations

import functools
import operator
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.databases.graphs import hand_built
from tj_conformance.oracle.compare import assert_equal, assert_jits
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

X = torch.arange(6.0).reshape(2, 3)
Y = torch.ones(2, 3) * 0.5


jit = functools.partial(tj.jit, frontend="fx")

twice = functools.partial(assert_jits, jit=jit)


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


def test_views_of_results_whose_sizes_depend_on_data() -> None:
    def program(x: torch.Tensor) -> Any:
        rows, columns = torch.nonzero(x, as_tuple=True)
        return rows + 1, columns * 2, torch.unbind(x[rows], 1)[0]

    values = (torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]), torch.eye(3), torch.ones(1, 3))
    jitted = jit(make_fx(program)(values[0]))
    assert_equal(jitted(values[0]), program(values[0]))
    jitted = jit(make_fx(lambda x: torch.nonzero(x, as_tuple=True))(values[0]))
    for value in values:
        assert_equal(jitted(value), torch.nonzero(value, as_tuple=True))


def test_metadata_of_the_tracing_is_not_believed() -> None:
    """`make_fx` records shapes and data types; the graph runs with others as well."""
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


# --------------------------------------------------------------------------- tensors of other kinds


def test_subclasses_and_sparse_tensors_are_left_to_dynamo() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    graph = fx.symbolic_trace(lambda x: x * 2)
    jitted = jit(graph, plugins=["torch", "subclass"])
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

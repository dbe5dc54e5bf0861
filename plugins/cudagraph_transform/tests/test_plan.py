"""Division of calls into segments: it depends on metadata alone, so CUDA devices are tested too."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import (
    Alias,
    BoundSymbol,
    Constant,
    Device,
    DType,
    Effects,
    NumberProxy,
    RuleTable,
    SubclassInfo,
    Symbol,
    SymDim,
    TensorProxy,
)
from tj_cudagraph.plan import Limits, segments
from tj_cudagraph.waits import WAITS, waits

CUDA = Device("cuda", 0)
X = TensorProxy("x", shape=(2,), strides=(1,), device=CUDA)
Y = X.replace(name="y")
MASK = X.replace(name="m", dtype=DType("bool", 8, "bool"))
INDEX = X.replace(name="i", dtype=DType("int64", 64, "int"))
HOST = X.replace(name="h", device=Device("cpu"))
LIMITS = Limits("cuda", waits())


def call(name: str, *args: Any, outputs: Any = Y, **more: Any) -> BoundSymbol:
    return BoundSymbol(Symbol.parse(name), args, outputs=outputs, **more)


INNER = call("aten.add.Tensor", X, HOST)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (call("torch.exp", X), None),
        (call("torch.add", X, 2), None),
        (call("torch.add", X, Constant("k", torch.zeros(()), named=False)), "a tensor on cpu"),
        (call("torch.add", X, HOST), "h is on cpu"),
        (call("torch.Tensor.cpu", X, outputs=HOST), "h is on cpu"),
        (call("torch.add", X, X.replace(name="z", device=Device("cuda", 1))), "several devices"),
        (call("torch.Tensor.item", X, outputs=NumberProxy("n")), "n is no tensor"),
        (call("torch.f", X.replace(shape=(SymDim("s0"),))), "sizes that are symbols"),
        (call("torch.f", X.replace(layout="sparse_coo", strides=())), "plain strided"),
        (call("torch.f", X.replace(flags=("conj",))), "plain strided"),
        (call("torch.rand", X, effects=Effects(ordered=("random:cuda",))), "random:cuda"),
        (call("torch.add_", X, effects=Effects(mutates=(0,))), "writes"),
        (call("tj.copy_back", X, Y, effects=Effects(copies_back=True)), "writes"),
        (call("torch.exp", X, outputs=Y.replace(requires_grad=True)), "autograd"),
        (call("torch.exp", X.replace(subclass=SubclassInfo("mine.Two"))), "tensor subclass"),
        (call("torch.check", X, outputs=None), "returns nothing"),
        (call("torch.t", X, effects=Effects(aliases=(Alias(0, "arg", 0),))), None),
        (  # also under no_grad it says so; where it is needed outside, it is made there
            call(
                "torch.t",
                X.replace(requires_grad=True),
                outputs=Y.replace(requires_grad=True),
                effects=Effects(aliases=(Alias(0, "arg", 0),)),
            ),
            None,
        ),
        (
            call(
                "torch.f",
                X,
                outputs=(Y, MASK),
                effects=Effects(aliases=(Alias(0, "arg", 0),)),
            ),
            "new memory and views",
        ),
        (call("aten.linalg_inv_ex.default", X), None),
        (call("aten._linalg_eigh.default", X), "waits for the device"),
        (call("mine.aten._linalg_eigh.default", X), "waits for the device"),
        (call("aten.index.Tensor", X, [INDEX]), None),
        (call("aten.index.Tensor", X, [None, MASK]), "waits for the device"),
        (call("aten.index_put.default", X, [MASK], X), "waits for the device"),
        (call("aten.as_strided.default", X, [1], [1], 1), "memory by its place"),
    ],
    ids=lambda value: value.symbol.qualname if isinstance(value, BoundSymbol) else "",
)
def test_what_stands_in_no_graph(made: BoundSymbol, said: str | None) -> None:
    found = LIMITS.refusal(made)
    assert found is None if said is None else found is not None and said in found


def test_what_a_call_consists_of_counts() -> None:
    from tj_core.extend import Body

    body = Body((X,), (call("aten._linalg_eigh.default", X),), Y)
    assert "waits" in (LIMITS.refusal(call("torch.linalg.eigh", X, body=body)) or "")
    body = Body((X,), (INNER,), Y)
    assert "h is on cpu" in (LIMITS.refusal(call("torch.f", X, body=body)) or "")


def test_segments_are_cut_and_small_ones_left_out() -> None:
    view = call("torch.t", X, effects=Effects(aliases=(Alias(0, "arg", 0),)))
    work, no = call("torch.exp", X), "no"
    calls = [work, view, work, work, work, view, view, work]
    refused = [None, None, no, None, None, None, None, None]
    found = [(s.start, s.stop) for s in segments(calls, refused, 2)]
    assert found == [(3, 8)]
    assert [(s.start, s.stop) for s in segments(calls, refused, 1)] == [(0, 2), (3, 8)]


def test_another_device_is_another_segment() -> None:
    def on(index: int) -> BoundSymbol:
        x = X.replace(device=Device("cuda", index))
        return call("torch.exp", x, outputs=x.replace(name="y"))

    calls = [on(0), on(0), on(1), on(0)]
    assert [(s.start, s.stop) for s in segments(calls, [None] * 4, 1)] == [(0, 2), (2, 3), (3, 4)]


def test_a_plugin_says_of_its_operations_that_they_wait() -> None:
    mine: RuleTable[Any] = RuleTable(WAITS)
    mine.set("mylib.f", lambda call: True)
    assert "mylib.f waits" in (Limits("cuda", mine | waits()).refusal(call("mylib.f", X)) or "")


def numbers(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).exp() * float((x + 1).sum().item())


def masked(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1)[x > 0.5].exp() + 1


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    x.add_(1)
    return y.exp() + x


def branched(x: torch.Tensor) -> torch.Tensor:
    y = torch.cond(x.sum() > 1, lambda x: x.exp() + 1, lambda x: x.cos() * 2, (x * 2,))
    return (y + 1).sin()


def drawn(x: torch.Tensor) -> torch.Tensor:
    y = x.exp() * 2
    return torch.rand_like(y) + y.sin() * 3


@pytest.mark.parametrize("program", [numbers, masked, written, branched, drawn])
def test_programs_with_such_calls_are_equal_to_eager(program: Any, graphed: Any) -> None:
    session = graphed(strict=False, check=2)
    f = session.jit(program)
    for seed in range(4):
        mine, eager = torch.rand(5), torch.empty(5)
        eager.copy_(mine)
        torch.manual_seed(seed)
        got = f(mine)
        torch.manual_seed(seed)
        torch.testing.assert_close(got, program(eager), rtol=0, atol=0)
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)
    assert session.recorder.replays >= 2


def test_segments_have_a_minimum(graphed: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(2) + x.exp() * 2

    for minimum, replays in ((3, 3), (4, 0)):
        session = graphed(minimum=minimum)
        f = session.jit(lambda x: (x.exp() * 2).t() + 1)
        for x in torch.rand(4, 2, 2):
            f(x)
        assert session.recorder.replays == replays


def test_where_values_of_kernels_are_compared_there_are_no_graphs(graphed: Any) -> None:
    session = graphed(check=3)
    f = session.jit(lambda x: x.exp() * 2)
    for x in torch.rand(3, 2):
        torch.testing.assert_close(f(x), x.exp() * 2)
    assert session.recorder.counts == (0, 0, 0)


@pytest.mark.usefixtures("recorded")
def test_the_trace_reads_back_and_says_what_is_outside(graphed: Any) -> None:
    session = graphed()
    f = session.jit(drawn)
    f(torch.rand(3))
    trace = tj.last_trace(f)
    assert type(trace).parse(str(trace), language=trace.language) == trace
    changes = {c.call: c.rule for c in trace.history[-1].changes}
    assert any("random:cpu" in rule for rule in changes.values())
    assert any(rule.endswith("calls as a graph") for rule in changes.values())


def test_options_are_checked() -> None:
    with pytest.raises(tj.TjError, match="warmup is 0, and at least 1"):
        tj.Session(("torch", _plugin()), overrides={"cudagraph_recorder": {"warmup": 0}})


def _plugin() -> Any:
    from tj_cudagraph.testing.plugin import RecorderPlugin

    return RecorderPlugin()


@pytest.mark.parametrize("lowered", [True, False])
@pytest.mark.parametrize("ambient", [True, False])
def test_casts_of_autocast_are_not_captured_where_it_keeps_them(
    lowered: bool, ambient: bool, graphed: Any
) -> None:
    session = graphed("autocast") if lowered else graphed()
    weight = torch.rand(3, 3, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.mm(x, weight).tanh() * 2

    def region(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return program(x)

    f = session.jit(program if ambient else region)
    for x in torch.rand(4, 2, 3):
        with torch.autocast("cpu", torch.bfloat16, enabled=ambient):
            torch.testing.assert_close([f(x), f(x)], [region(x)] * 2, rtol=0, atol=0)
    inside = [c for run in tj.last_trace(f).calls for r in run.subprograms for c in r.program.calls]
    assert bool(inside) is lowered

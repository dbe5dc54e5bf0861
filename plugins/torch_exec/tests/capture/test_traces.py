"""Traces of PyTorch programs: readable, runnable, deterministic, and equal when read back."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import Stage, Transform
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled(16)

X = torch.linspace(-1, 1, 6).reshape(2, 3)
W = torch.linspace(0, 1, 9).reshape(3, 3)
TABLE = torch.tensor([1.0, 2.0, 3.0])


def pointwise(x, w):
    y = x.sin() * 2
    return y + 1.5


def matmuls(x, w):
    hidden = F.gelu(F.linear(x, w, w[0]), approximate="tanh")
    return hidden.softmax(dim=-1)


def many_outputs(x, w):
    values, indices = x.topk(2)
    a, b, _c = w.unbind(0)
    return {"values": values, "rest": (indices, a + b), "input": x}


def views(x, w):
    rows = x.reshape(3, 2).t()[:, 1:]
    return rows.expand(2, 2), w.diagonal()


def writes(x, w):
    y = x.clone()
    y[0] = w[0]
    y.mul_(2)
    y.t_()
    return y, y.shape


def regions(x, w):
    with torch.no_grad():
        y = x @ w
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ w
    return y + z.float()


def random(x, w):
    return F.dropout(x, 0.25) + torch.rand(2, 3), torch.randperm(4)


def factories(x, w):
    return torch.full((2,), float("inf")), torch.arange(3), torch.eye(2, dtype=torch.float64)


def constants(x, w):
    return x * TABLE + torch.tensor([4.0, 5.0, 6.0])


def keywords(x, w):
    return torch.clamp(x, min=-0.5, max=0.5).sum(dim=1, keepdim=True).to(dtype=torch.float64)


def slices(x, w):
    return x[..., None, ::1], x[:, [0, 2]], x[0, 1], x[x > 0].shape[0] >= 0


def attention(x, w):
    q = w.reshape(1, 1, 3, 3)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def strings(x, w):
    return torch.einsum("ij,jk->ik", x, w), F.interpolate(x[None], 5, mode="linear")


def normalised(x, w):
    return F.layer_norm(x, (3,), w[0], w[1]), F.batch_norm(x, None, None, training=True)


def complex_numbers(x, w):
    z = torch.complex(x, x)
    return z * 1j, z.conj().imag


PROGRAMS = (
    pointwise,
    matmuls,
    many_outputs,
    views,
    writes,
    regions,
    random,
    factories,
    constants,
    keywords,
    slices,
    attention,
    strings,
    normalised,
    complex_numbers,
)


def executed(trace: Any) -> Callable[..., Any]:
    """Function defined by the printed text."""
    scope: dict[str, Any] = {}
    exec(compile(str(trace), "<printed>", "exec"), scope)
    return scope[trace.name]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_traces_read_back_as_themselves(program: Callable[..., Any], needs_grad: bool) -> None:
    g = tj.jit(program, check=2)
    g(X.clone().requires_grad_(needs_grad) * 1, W)
    for trace in tj.last_traces(g):
        again = tj.Trace.parse(str(trace), language=trace.language, constants=trace.constants())
        assert again == trace


SELF_CONTAINED = [p for p in PROGRAMS if p is not constants and p is not slices]


@pytest.mark.parametrize("program", SELF_CONTAINED, ids=lambda f: f.__name__)
def test_printed_programs_run(program: Callable[..., Any]) -> None:
    g = tj.jit(program)
    torch.manual_seed(1)
    g(X, W)
    trace = tj.last_trace(g)
    inputs = {"x": X, "w": W}
    arguments = [inputs[p.name] for p in trace.inputs]
    torch.manual_seed(0)
    expected = g.__tj__.last.compilation.program.function(*arguments)
    torch.manual_seed(0)
    torch.testing.assert_close(executed(trace)(*arguments), expected, rtol=0, atol=0)


def test_values_have_the_users_names_and_lines() -> None:
    g = tj.jit(matmuls)
    g(X, W)
    trace = tj.last_trace(g)
    assert {p.name for p in trace.inputs} == {"x", "w"}
    assert "hidden" in {p.name for c in trace.calls for p in c.flat_outs}
    lines = {c.source.text for c in trace.calls}
    assert "return hidden.softmax(dim=-1)" in lines
    assert all(c.source.file == __file__ for c in trace.calls)
    assert all(c.source.function == "matmuls" for c in trace.calls)
    assert "# test_traces.py:" in str(trace)


def test_parameters_and_modules_have_the_users_names() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(3))])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) * self.scales[0]

    g = tj.jit(nn.Sequential(Block(), nn.Tanh()))
    g(X)
    trace = tj.last_trace(g)
    assert any("fc_weight" in p.name for p in trace.inputs)
    sources = [(c.source.module_path, c.source.text) for c in trace.calls]
    users = "return self.fc(x) * self.scales[0]"
    assert ("0.fc", users) in sources
    assert ("0", users) in sources
    assert sources[-1] == ("1", "def forward(self, input: Tensor) -> Tensor:")  # nn.Tanh's own


class Owner(nn.Module):
    """Module with a parameter, a buffer, and a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
        self.plain = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.scale + self.plain


@pytest.mark.parametrize("read", [True, False])
def test_what_a_module_owns_is_static_where_a_transform_reads_that(read: bool) -> None:
    reads = frozenset({"STATIC_MEMORY_LOCATION"}) if read else frozenset()
    transform = Transform("reader", lambda trace, context: trace, Stage.CLAIMED, reads=reads)
    expected = {"fc_weight", "fc_bias", "scale"} if read else set()
    g = tj.jit(Owner(), transforms=(transform,))
    g(X)
    inputs = tj.last_trace(g).inputs
    assert {p.name for p in inputs if "STATIC_MEMORY_LOCATION" in p.tags} == expected
    h = tj.jit(lambda x, w: x @ w, transforms=(transform,))
    h(X, nn.Parameter(W))
    assert len([p for p in tj.last_trace(h).inputs if p.tags]) == int(read)
    graph = torch.fx.symbolic_trace(Owner())
    f = tj.jit(graph, transforms=(transform,))
    f(X)
    assert len([p for p in tj.last_trace(f).inputs if p.tags]) == 4 * int(read), "the graph holds"


def test_metadata_is_printed() -> None:
    g = tj.jit(lambda x: x.t() * 2)
    g(X.clone().requires_grad_())
    text = str(tj.last_trace(g))
    assert '"cpu f32[3, 2] strides=(1, 3) requires_grad"' in text
    assert "#| _0 = aten.mul.Tensor(" in text


def test_tensors_of_closures_and_globals_are_inputs() -> None:
    offset = torch.ones(3)

    g = tj.jit(lambda x: x * TABLE + offset)
    torch.testing.assert_close(g(X), X * TABLE + offset)
    inputs = {p.name for p in tj.last_trace(g).inputs}
    assert len(inputs) == 3
    assert any("TABLE" in name for name in inputs)
    offset.add_(1)  # read anew in each call
    torch.testing.assert_close(g(X), X * TABLE + offset)
    assert tj.stats(g).misses == 1


def test_a_write_rebinds_what_later_calls_read() -> None:
    g = tj.jit(writes)
    g(X, W)
    (y,) = tj.last_trace(g).outputs
    assert y.shape == (3, 2)
    assert y.strides == (1, 3)


def test_traces_are_equal_only_to_their_like() -> None:
    def other(x, w):
        y = x.sin() * 2
        return y + 2.5

    f, g, h = tj.jit(pointwise), tj.jit(pointwise), tj.jit(other)
    for jitted in (f, g, h):
        jitted(X, W)
    assert tj.last_traces(f) == tj.last_traces(g)
    assert hash(tj.last_trace(f)) == hash(tj.last_trace(g))
    assert tj.last_trace(f) != tj.last_trace(h)


SCRIPT = """
import torch, tj_core as tj
import torch.nn.functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
    def forward(self, x, table, names):
        y = self.b(self.a(x)) + table["z"] * table["a"]
        for name in sorted(names):
            y = y * len(name)
        return {n: y.max(-1) for n in sorted(names)}

g = tj.jit(Net(), check=2)
ones = torch.ones(4)
g(torch.ones(2, 4), {"z": ones, "a": ones * 2}, {"one", "three", "fifteen"})
for trace in tj.last_traces(g):
    print(trace)
print(tj.explain(g))
"""


@pytest.mark.slow
def test_the_text_is_the_same_in_every_process(tmp_path: Path) -> None:
    """In this process after other programs, and in a new one with other string hashes."""
    file = tmp_path / "script.py"  # the text of ``-c`` is known to tracebacks from Python 3.13 on
    file.write_text(SCRIPT, "utf-8")
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(compile(SCRIPT, str(file), "exec"), {"__name__": "__main__"})
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    there = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert there.returncode == 0, there.stderr
    assert "layer_norm" in there.stdout
    assert there.stdout == here.getvalue()


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
@pytest.mark.parametrize("broken", [False, True], ids=["whole", "after a break"])
@pytest.mark.parametrize("value", [3, 0.3, torch.tensor(0.3)], ids=["int", "float", "tensor"])
def test_calls_stay_what_the_program_calls(value: Any, broken: bool) -> None:
    """Dynamo would decompose these for Inductor, which rounds differently."""
    if isinstance(value, torch.Tensor) and not broken and torch.__version__ < (2, 11):
        pytest.skip("PyTorch 2.10 does not capture a value that is a tensor")

    def f(a, b, c):
        if broken:
            torch._dynamo.graph_break()
        out = torch.addcdiv(a, b, c, value=value)
        return out, a.clone().addcdiv_(b, c, value=value), a.clone().addcmul_(b, c, value=value)

    inputs = [torch.rand(5, 5, dtype=torch.float16) + 1 for _ in range(3)]
    g = tj.jit(f)
    for mine, theirs in zip(g(*inputs), f(*inputs), strict=True):
        assert torch.equal(mine, theirs)
    if not broken:  # PyTorch's own hook breaks the graph at a value that is a tensor
        names = [call.symbol.name for call in tj.last_trace(g).calls]
        names = [name for name in names if name != "Tensor.item"]
        assert names == ["addcdiv", "clone", "Tensor.addcdiv_", "clone", "Tensor.addcmul_"]

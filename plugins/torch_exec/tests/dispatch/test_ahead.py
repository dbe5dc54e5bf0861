"""Programs that are compiled ahead of calls (``jitted.compile_for``)."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_retraces
from torch import nn
from torch._subclasses import FakeTensorMode

X = torch.arange(6.0).reshape(2, 3)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def test_a_call_finds_its_program_and_nothing_has_run() -> None:
    module = net()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    g = tj.jit(module)
    state = torch.get_rng_state()
    g.compile_for(X)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(module.state_dict(), before)
    assert (tj.stats(g).calls, tj.stats(g).entries) == (0, 1)
    assert_retraces(module.eval(), g.eval(), X, retraces=True)
    g.train()
    g(X)
    assert (tj.stats(g).calls, tj.stats(g).hits) == (2, 1)
    g.compile_for(X)
    assert tj.stats(g).entries == 2, "nothing is compiled twice"


def test_several_shapes() -> None:
    def f(x: torch.Tensor, *, k: int) -> torch.Tensor:
        return x * k

    fixed, symbolic = tj.jit(f, dynamic=False), tj.jit(f)
    for g, entries in ((fixed, 3), (symbolic, 2)):
        for rows in (2, 3, 4):
            g.compile_for(torch.empty(rows, 3), k=2)
        assert tj.stats(g).entries == entries
        for rows in (2, 3, 4):
            assert torch.equal(g(torch.ones(rows, 3), k=2), torch.full((rows, 3), 2.0))
        assert (tj.stats(g).hits, tj.stats(g).misses) == (3, 0)


def test_fake_tensors_say_enough() -> None:
    g = tj.jit(lambda x, y: x @ y + (x is y))
    with FakeTensorMode():
        x = torch.empty(40, 40).t()
        y = torch.empty(40, 40, requires_grad=True)
    g.compile_for(x, y)
    a, b = torch.rand(40, 40).t(), torch.rand(40, 40, requires_grad=True)
    assert torch.equal(g(a, b), a @ b)
    assert (tj.stats(g).hits, tj.stats(g).entries) == (1, 1)
    g.compile_for(x, x)
    assert torch.equal(g(a, a), a @ a + 1)
    assert (tj.stats(g).hits, tj.stats(g).entries) == (2, 2)


def test_a_tensor_on_meta_is_refused() -> None:
    with pytest.raises(tj.TjError, match="does not say which device"):
        tj.jit(lambda x: x + 1).compile_for(X.to("meta"))


def test_context_of_the_call() -> None:
    g = tj.jit(lambda x: x @ x.T)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        g.compile_for(X)
        assert g(X).dtype is torch.bfloat16
    assert g(X).dtype is torch.float32
    assert (tj.stats(g).hits, tj.stats(g).misses) == (1, 1)


def test_autocast_of_the_jit_call() -> None:
    session = tj.Session(plugins=["torch", "autocast"])
    g = tj.jit(lambda x: x @ x.T, autocast=torch.bfloat16, session=session)
    g.compile_for(X)
    assert g(X).dtype is torch.bfloat16
    assert tj.stats(g).hits == 1


def test_with_programs_compiled_behind() -> None:
    g = tj.jit(net().eval(), on_miss="eager")
    g.compile_for(X)
    g(X)
    assert (tj.stats(g).hits, tj.stats(g).eager) == (1, 0)


def broken(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x


def test_what_has_no_program() -> None:
    g = tj.jit(broken)
    with pytest.raises(tj.TjError, match=r"(?s)breaks its graph.*test_ahead"):
        g.compile_for(X)
    with pytest.raises(tj.TjError, match="raises"):
        tj.jit(lambda x: x @ x).compile_for(X)
    with pytest.raises(tj.TjError, match="lazy module"):
        tj.jit(nn.LazyLinear(2)).compile_for(X)

    async def later(x: Any) -> Any:
        return x

    with (
        pytest.warns(tj.TjWarning, match="no single call to compile"),
        pytest.raises(tj.TjError, match="no program of its own"),
    ):
        tj.jit(later, fullgraph=False).compile_for(X)
    few = tj.jit(lambda x, k: x + len(k), recompile_limit=1)
    few.compile_for(X, "a")
    with pytest.raises(tj.TjError, match="1 programs were compiled for values of"):
        few.compile_for(X, "bb")
    with (
        torch.compiler.set_stance("eager_on_recompile"),
        pytest.raises(tj.TjError, match="stance says that nothing is compiled"),
    ):
        few.compile_for(X.double(), "a")
    graph = tj.jit(torch.fx.symbolic_trace(lambda x: x + 1), frontend="fx")
    with pytest.raises(tj.TjError, match="compiles in calls only"):
        graph.compile_for(X)


def test_a_program_that_is_switched_off_compiles_nothing() -> None:
    g = tj.jit(lambda x: x + 1, enable=False)
    g.compile_for(X)
    assert tj.stats(g).entries == 0


def test_a_module_keeps_its_own_member() -> None:
    class Own(nn.Module):
        def compile_for(self, x: int) -> int:
            return x + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert tj.jit(Own()).compile_for(1) == 2

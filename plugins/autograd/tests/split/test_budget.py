"""Memory budgets, and executors' answers on fusion and costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd.split.arithmetic import arithmetic
from tj_autograd.split.costs import estimate
from tj_conformance.gradients.training import trained
from tj_core.errors import ConfigError, PluginError, notes
from tj_core.extend import (
    BoundSymbol,
    Claim,
    Decline,
    Device,
    Executor,
    Fusion,
    RuleTable,
    TensorProxy,
)
from tj_core.testing.fusing import one_by_one
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)

X, WEIGHTS = torch.randn(32, 32), [torch.randn(32, 32) for _ in range(4)]
BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = x + F.layer_norm(F.gelu(x @ w), (32,)).tanh()
    return x.square().sum()


def made(jitted: Any) -> list[TensorProxy]:
    """Values that the forward makes and saves."""
    trace = tj.last_trace(jitted, stage="SPLIT")
    mine = {p.name for p in trace.inputs}
    return [p for p in trace.outputs[2] if p.name not in mine]


def size(jitted: Any) -> int:
    return sum(p.dtype.bits // 8 * torch.Size(p.shape).numel() for p in made(jitted))


def again(jitted: Any) -> list[str]:
    """Names of the forward's operations that the backward runs again."""
    calls = tj.last_trace(jitted, "backward", stage="SPLIT").calls
    ahead = {c.label for c in tj.last_trace(jitted, stage="SPLIT").calls}
    names = (c.symbol.path for c in calls if c.parent in ahead)
    return [n for n in names if not n.endswith((".backward", "add.Tensor"))]


# ---------------------------------------------------------------------------- the budget


@pytest.mark.slow
def test_no_more_is_saved_than_the_budget_says() -> None:
    default = size(trained(layers, X, *WEIGHTS))
    sizes = []
    for budget in BUDGETS:
        jitted = trained(layers, X, *WEIGHTS, autograd={"memory_budget": budget})
        sizes.append(size(jitted))
        assert sizes[-1] <= budget * default
    assert sizes[0] == default
    assert sizes[-1] == 0
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(BUDGETS)


def test_what_takes_least_for_its_bytes_runs_again_first() -> None:
    jitted = trained(layers, X, *WEIGHTS, autograd={"memory_budget": 0.75})
    assert "matmul" not in again(jitted)
    assert "matmul" in again(trained(layers, X, *WEIGHTS, autograd={"memory_budget": 0.0}))


def test_a_product_costs_more_than_its_bytes() -> None:
    jitted = trained(lambda x, w: ((x @ w).sin() + x).sum(), X, WEIGHTS[0])
    calls = {c.symbol.name: c for c in tj.last_trace(jitted, stage="FUNCTIONAL").calls}
    assert estimate(calls["matmul"]) > estimate(calls["add"]) > estimate(calls["sin"]) > 0


def test_random_numbers_are_not_drawn_again() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(x @ w, 0.5).tanh().sum()

    jitted = trained(f, X, WEIGHTS[0], autograd={"memory_budget": 0.0})
    assert not [name for name in again(jitted) if "dropout" in name]
    assert size(jitted) > 0


def test_tags_stand_above_the_budget() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return tj.tag(x @ w, "SAVE").sin().sum()

    jitted = trained(f, X, WEIGHTS[0], autograd={"memory_budget": 0.0})
    assert len(made(jitted)) == 1
    assert "matmul" not in again(jitted)


def test_other_tangents_do_with_what_is_saved() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x @ w).sin()
        return y @ w, y.cos()

    for pick in (lambda a, b: a.sum(), lambda a, b: b.t().contiguous().t().square().sum()):
        trained(lambda x, w, pick=pick: pick(*f(x, w)), X, WEIGHTS[0])
        jitted = tj.jit(f, autograd={"memory_budget": 0.0})
        grads = []
        for fn in (jitted, f):
            args = [X.clone().requires_grad_(), WEIGHTS[0].clone().requires_grad_()]
            grads.append(torch.autograd.grad(pick(*fn(*args)), args))
        assert all(map(torch.equal, *grads))


@pytest.mark.parametrize("budget", [-0.1, 1.5])
def test_a_budget_is_a_part(budget: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        tj.jit(layers, autograd={"memory_budget": budget})


def test_the_budget_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TJ_AUTOGRAD_MEMORY_BUDGET", "0.0")
    assert size(trained(layers, X, *WEIGHTS, session=tj.Session())) == 0


# ------------------------------------------------------------------------ time or memory


def squashed(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = F.silu(torch.tanh(x * w) * torch.sigmoid(x) + 0.5 * x)
    return x.square().sum()


def test_slow_functions_do_not_run_again_where_time_is_preferred() -> None:
    """Inside of fused kernels only arithmetic counts; results are the same."""
    pointwise = {"tanh", "sigmoid", "mul", "add", "nn.functional.silu", "square"}
    fuser = fusing(pointwise)
    least = trained(squashed, X, *WEIGHTS, executors=[fuser, "torch"])
    options = {"autograd": {"prefer": "time"}}
    fast = trained(squashed, X, *WEIGHTS, executors=[fuser, "torch"], **options)
    slow = {"tanh", "sigmoid", "nn.functional.silu"}
    assert slow & set(again(least))
    assert set(again(fast)) == {"mul", "add"}
    assert size(least) < size(fast) <= 3 * len(WEIGHTS) * X.numel() * X.element_size()


def test_a_tag_stands_above_time() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return tj.tag((x * w).tanh(), "DONT_SAVE_FOR_BACKWARD").square().sum()

    jitted = trained(f, X, WEIGHTS[0], autograd={"prefer": "time"})
    assert "tanh" in again(jitted)


def test_what_is_not_on_a_cpu_takes_the_time_of_memory() -> None:
    jitted = trained(lambda x: (x.tanh() + x**2 + x**1.7 + x * 2).sum(), X.abs())
    calls = {c.symbol.path: c for c in tj.last_trace(jitted, stage="SPLIT").calls}
    assert arithmetic(calls["tanh"]) > 0
    assert arithmetic(calls["mul"]) == 0
    powers = [c for c in tj.last_trace(jitted, stage="SPLIT").calls if "pow" in c.symbol.path]
    assert [arithmetic(c) > 0 for c in powers] == [False, True]
    moved = calls["tanh"].map_proxies(lambda p: p.replace(device=Device("cuda", 0)))
    body = moved.body
    assert body is not None
    parts = tuple(c.map_proxies(lambda p: p.replace(device=Device("cuda", 0))) for c in body.calls)
    assert arithmetic(moved.replace(body=replace(body, calls=parts))) == 0


def test_it_is_memory_or_time() -> None:
    with pytest.raises(ConfigError, match=r'prefer is .speed., neither "memory" nor "time"'):
        tj.jit(layers, autograd={"prefer": "speed"})


# ---------------------------------------------------------------------------- what executors say


def fusing(names: set[str], cost: Any = None, claims: Any = None) -> Executor:
    """An executor that would fuse the operations called ``names``."""
    table: RuleTable[Any] = RuleTable("claims")
    for key, implementation in (claims or {}).items():
        table.set(key, Claim(implementation))

    def can_fuse(call: BoundSymbol) -> bool | Decline:
        wanted = call.symbol.path in names and not call.symbol.variant
        return True if wanted else Decline("fuses others")

    return Executor("fusing", table, fusion=Fusion(can_fuse, one_by_one, cost))


def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.softmax(x @ w, -1).square().sum()


def test_what_an_executor_fuses_runs_again() -> None:
    assert again(trained(normed, X, WEIGHTS[0])) == []
    assert len(made(trained(normed, X, WEIGHTS[0]))) == 1

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return (y.cumsum(-1).sin() * y.sin()).sum()  # the cumulated sum is made of what is saved

    assert "cumsum" not in again(trained(f, X, WEIGHTS[0]))
    fused = trained(f, X, WEIGHTS[0], executors=[fusing({"cumsum", "sin", "mul"})])
    assert "cumsum" in again(fused)
    assert len(made(fused)) == 1


def test_who_would_get_the_call_is_asked() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return (y.cumsum(-1).sin() * y.sin()).sum()

    claims: RuleTable[Any] = RuleTable("claims")
    claims.set("torch.cumsum", Claim(torch.cumsum))
    whole, fuser = Executor("whole", claims), fusing({"cumsum", "sin", "mul"})
    assert "cumsum" not in again(trained(f, X, WEIGHTS[0], executors=[whole, fuser]))
    assert "cumsum" in again(trained(f, X, WEIGHTS[0], executors=[fuser, whole]))


def test_a_value_inside_a_fused_kernel_costs_a_write() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        part = (x @ w)[:, :20] * 2
        return part.sin().sum()

    assert [p.name for p in made(trained(f, X, WEIGHTS[0]))] == ["part"]
    fused = trained(f, X, WEIGHTS[0], executors=[fusing({"__getitem__", "mul", "sin", "sum"})])
    assert "mul" in again(fused)
    assert len(made(fused)) == 1


def test_a_view_costs_what_it_keeps() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        part = (x @ w)[:, :10]  # 320 numbers that keep 1024
        return ((part * 2).sin() + (part * 3).cos()).sum()

    jitted = trained(f, X, WEIGHTS[0])
    assert [p.shape for p in made(jitted)] == [(32, 10), (32, 10)]
    assert not again(jitted)


def test_an_executor_may_say_what_a_call_costs() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.cumsum(x @ w, 0).tanh() + torch.logcumsumexp(x @ w.sin(), 0).tanh()).sum()

    def runs(expensive: str) -> list[str]:
        def cost(call: Any) -> float | None:
            return 1.0 if call.symbol.name == expensive else None

        names = ("cumsum", "logcumsumexp")
        fuser = fusing(set(), cost, {f"torch.{n}": getattr(torch, n) for n in names})
        options = {"executors": [fuser], "autograd": {"memory_budget": 0.6}}
        return again(trained(f, X, WEIGHTS[0], **options))

    assert "cumsum" not in runs("cumsum")
    assert "cumsum" in runs("logcumsumexp")


@pytest.mark.parametrize("what", ["can_fuse", "cost"])
def test_what_raises_while_memory_is_planned_is_the_executors_fault(what: str) -> None:
    def broken(call: Any) -> Any:
        raise LookupError("no device")

    fuser = fusing({"cumsum"}, broken, {"torch.cumsum": torch.cumsum})
    if what == "can_fuse":
        fuser = Executor("fusing", fuser.claims, fusion=Fusion(broken, one_by_one))
    f = lambda x, w: torch.cumsum(x @ w, 0).tanh().sum()  # noqa: E731
    with pytest.raises(PluginError) as error:
        trained(f, X, WEIGHTS[0], executors=[fuser], autograd={"memory_budget": 0.5})
    assert error.value.message.startswith("executor 'fusing' failed in its check of ")
    assert error.value.message.endswith(": LookupError: no device")
    assert notes(error.value) == []

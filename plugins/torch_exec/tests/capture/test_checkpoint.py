"""`torch.utils.checkpoint`: saved tensors, recomputation and random numbers are eager's."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.compare import assert_equal
from tj_conformance.sampling import FULL
from tj_core.extend import (
    Claim,
    Executor,
    RuleTable,
    Stage,
    Transform,
    hookimpl,
)
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

pytestmark = pytest.mark.sampled(16)

SIZE = 64


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.dropout(torch.sin(x @ w), 0.5)
    return x


def saves_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op == torch.ops.aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def selective(policy: Any) -> Callable[[], Any]:
    return functools.partial(create_selective_checkpoint_contexts, policy)


def counting() -> Any:
    """Contexts whose policy saves every other product, counted from each region's start."""
    count = 0

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        nonlocal count
        if op != torch.ops.aten.mm.default:
            return CheckpointPolicy.PREFER_RECOMPUTE
        count += 1
        return CheckpointPolicy.MUST_SAVE if count % 2 else CheckpointPolicy.MUST_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "without random state": {"use_reentrant": False, "preserve_rng_state": False},
    "reentrant without": {"use_reentrant": True, "preserve_rng_state": False},
    "selective": {"use_reentrant": False, "context_fn": selective(saves_products)},
    "list of operators": {
        "use_reentrant": False,
        "context_fn": selective([torch.ops.aten.sin.default]),
    },
    "counting": {"use_reentrant": False, "context_fn": counting},
    "no check": {"use_reentrant": False, "determinism_check": "none", "early_stop": False},
    "debug": {"use_reentrant": False, "debug": True},
}


def once(**options: Any) -> Callable[..., Any]:
    return lambda x, w: checkpoint(block, x, w, **options).sum()


def twice(**options: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = checkpoint(block, x, w, **options)
        return checkpoint(block, y.cos(), w, **options).sum()

    return f


def nested(**options: Any) -> Callable[..., Any]:
    def inner(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, w, **options) * 2

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(inner, x @ w, w, **options).sum()

    return f


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, SIZE * SIZE).reshape(SIZE, SIZE)
    return x.clone().requires_grad_(), (x / SIZE).t().clone().requires_grad_()


class Step:
    """One forward and backward: gradients, kernels that ran, and bytes kept in between."""

    def __init__(self, f: Callable[..., Any]) -> None:
        x, w = inputs()
        torch.manual_seed(5)
        gc.collect()  # what earlier runs left behind must not be freed in between
        gc.disable()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as forward:
            out = f(x, w)
        gc.enable()
        self.kept = sum(e.self_cpu_memory_usage for e in forward.key_averages())
        with profile(activities=[ProfilerActivity.CPU]) as backward:
            out.backward()
        self.out = out.detach()
        self.gradients = x.grad, w.grad
        self.forward, self.backward = self.kernels(forward), self.kernels(backward)

    @staticmethod
    def kernels(run: profile) -> dict[str, int]:
        names = ("aten::mm", "aten::sin", "aten::bernoulli_")
        return {e.key: e.count for e in run.key_averages() if e.key in names}


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (shape, name)
        for name, shape in itertools.product(OPTIONS, (once, twice, nested))
        if FULL or shape is nested or name == "plain"
    ],
)
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # PyTorch 2.10 says so
def test_a_step_is_eagers(shape: Callable[..., Any], name: str) -> None:
    """Bit-equal gradients, the same kernels run as often, the same bytes kept in between."""
    f = shape(**OPTIONS[name])
    jitted = tj.jit(f, check=2)
    Step(jitted)
    expected, got = Step(f), Step(jitted)
    assert_equal(got.out, expected.out)
    assert_equal(got.gradients, expected.gradients)
    assert (got.forward, got.backward) == (expected.forward, expected.backward)
    if name != "debug":  # PyTorch's log of the operations comes and goes with a few bytes
        assert got.kept == expected.kept
    assert tj.stats(jitted).fallbacks == ()
    assert tj.stats(jitted).hits == 1
    plain = Step(lambda x, w: block(x, w).sum())
    if name == "plain" and shape is once:  # it is worth measuring
        assert got.backward["aten::sin"] == 3 > plain.backward.get("aten::sin", 0)
        assert got.kept < plain.kept / 3


def test_the_trace_has_the_call_and_its_region() -> None:
    jitted = tj.jit(once(use_reentrant=False, preserve_rng_state=False))
    jitted(*inputs())
    for trace in tj.last_traces(jitted):
        call = trace.calls[0]
        assert call.symbol.qualname == "torch.utils.checkpoint.checkpoint"
        assert dict(call.kwargs) == {"use_reentrant": False, "preserve_rng_state": False}
        assert [r.name for r in call.subprograms] == ["body"]
        assert call.effects.ordered == ("random:cpu",)


# --------------------------------------------------------------------------- inlined

JOINT = Transform(
    "gradients", lambda trace, context: trace, after=Stage.ACQUIRED, produces=Stage.JOINT
)
"""Stands for a plugin that takes gradients."""


def symbols(f: Any) -> list[str]:
    return [c.symbol.name for c in tj.last_trace(f).calls]


@pytest.mark.parametrize("name", OPTIONS)
def test_without_gradients_the_region_stands_in_its_place(name: str) -> None:
    f = nested(**OPTIONS[name])
    jitted = tj.jit(f, check=2)
    x, w = inputs()
    with torch.no_grad():
        torch.manual_seed(1)
        got = jitted(x, w)
        torch.manual_seed(1)
        assert_equal(got, f(x, w))
    assert symbols(jitted) == [
        "matmul",
        *["matmul", "sin", "nn.functional.dropout"] * 3,
        "mul",
        "sum",
    ]
    assert not any("CHECKPOINT" in c.tags for c in tj.last_trace(jitted).calls)


def test_inputs_without_gradients_need_no_checkpoint() -> None:
    jitted = tj.jit(once(use_reentrant=False))
    x, w = inputs()
    jitted(x.detach(), w.detach())
    assert "utils.checkpoint.checkpoint" not in symbols(jitted)


def test_contexts_of_the_users_own_are_entered_even_so() -> None:
    entered = []

    class Noting:
        def __enter__(self) -> None:
            entered.append(1)

        def __exit__(self, *args: Any) -> None:
            pass

    def contexts() -> Any:
        return Noting(), Noting()

    f = once(use_reentrant=False, context_fn=contexts)
    jitted = tj.jit(f)
    x, w = (t.detach() for t in inputs())
    jitted(x, w)
    assert entered == [1]
    joint = tj.jit(f, transforms=[JOINT])
    joint(*inputs())
    assert "utils.checkpoint.checkpoint" in symbols(joint)


def tags(f: Callable[..., Any]) -> list[tuple[str, dict[str, Any]]]:
    jitted = tj.jit(f, transforms=[JOINT], check=2)
    jitted(*inputs())
    return [(c.symbol.name, dict(c.tags)) for c in tj.last_traces(jitted)[-1].calls]


def test_for_who_takes_gradients_calls_say_what_the_user_asked_for() -> None:
    def f(x, w):
        y = checkpoint(lambda a, b: (a @ b).sin(), x, w, use_reentrant=False)
        return checkpoint(lambda a: a.cos(), y, use_reentrant=True, preserve_rng_state=False).sum()

    first = {"CHECKPOINT": "0", "RECOMPUTE": None, "STASH_RNG": None}
    assert tags(f) == [
        ("matmul", first),
        ("sin", first),
        ("cos", {"CHECKPOINT": "1", "RECOMPUTE": None}),
        ("sum", {}),
    ]


def test_nested_regions_are_numbered_inside_of_each_other() -> None:
    def inner(a):
        return checkpoint(torch.sin, a, use_reentrant=False, preserve_rng_state=False) * 2

    def f(x, w):
        y = checkpoint(lambda a: inner(a) + inner(a + 1), x, use_reentrant=False)
        return checkpoint(torch.cos, y, use_reentrant=False).sum()

    found = tags(f)
    assert [(name, t.get("CHECKPOINT"), "STASH_RNG" in t) for name, t in found] == [
        ("sin", "0.0", False), ("mul", "0", True), ("add", "0", True), ("sin", "0.1", False),
        ("mul", "0", True), ("add", "0", True), ("cos", "1", True), ("sum", None, False),
    ]  # fmt: skip
    assert all("RECOMPUTE" in t for _, t in found[:-1])


@pytest.mark.parametrize(
    ("policy", "tag"),
    [
        (CheckpointPolicy.MUST_SAVE, "SAVE"),
        (CheckpointPolicy.PREFER_SAVE, "PREFER_SAVE"),
        (CheckpointPolicy.MUST_RECOMPUTE, "RECOMPUTE"),
        (CheckpointPolicy.PREFER_RECOMPUTE, "PREFER_RECOMPUTE"),
        (True, "SAVE"),
        (False, "PREFER_RECOMPUTE"),
    ],
)
def test_policies_become_tags(policy: Any, tag: str) -> None:
    contexts = selective(lambda ctx, op, *args, **kwargs: policy)

    def f(x, w):
        return checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts).sum()

    assert tags(f)[0] == ("sin", {"CHECKPOINT": "0", "STASH_RNG": None, tag: None})


def test_a_policy_sees_each_operator_with_its_metadata() -> None:
    seen = []

    def policy(ctx, op, *args, **kwargs):
        seen.append((op, tuple(args[0].shape), ctx.op_output.dtype))
        return saves_products(ctx, op)

    def f(x, w):
        return checkpoint(F.linear, x, w, use_reentrant=False, context_fn=selective(policy)).sum()

    jitted = tj.jit(f, transforms=[JOINT], check=2)
    jitted(*inputs())
    aten = torch.ops.aten
    assert seen[:2] == [
        (aten.t.default, (SIZE, SIZE), torch.float32),
        (aten.mm.default, (SIZE, SIZE), torch.float32),
    ]
    call = tj.last_trace(jitted).calls[0]
    assert dict(call.tags) == {"CHECKPOINT": "0", "SAVE": None, "STASH_RNG": None}
    assert [list(c.tags) for c in call.body.calls] == [["PREFER_RECOMPUTE"], ["SAVE"]]


def test_a_policy_is_asked_where_sizes_are_symbols() -> None:
    seen = []

    def policy(ctx, op, *args, **kwargs):
        seen.append(tuple(args[0].shape))
        return saves_products(ctx, op)

    def f(x, w):
        y = checkpoint(
            lambda a: (a @ w).reshape(-1, a.shape[0]), x, use_reentrant=False,
            context_fn=selective(policy),
        )  # fmt: skip
        return y.sin().sum()

    jitted = tj.jit(f, transforms=[JOINT], check=2, dynamic=True)
    x, w = inputs()
    for rows in (SIZE, SIZE - 1):
        part = x.detach()[:rows].clone().requires_grad_()
        found, expected = (torch.autograd.grad(g(part, w), (part, w)) for g in (jitted, f))
        torch.testing.assert_close(found, expected)
    assert (SIZE, SIZE) in seen


def test_a_policy_that_counts_is_asked_in_order() -> None:
    def f(x, w):
        return checkpoint(block, x, w, use_reentrant=False, context_fn=counting).sum()

    products = [t for name, t in tags(f) if name == "matmul"]
    assert ["SAVE" in t for t in products] == [True, False, True]
    assert ["RECOMPUTE" in t for t in products] == [False, True, False]


def test_the_users_own_tag_stays() -> None:
    def f(x, w):
        return checkpoint(lambda a: tj.tag(a.sin(), "SAVE").cos(), x, use_reentrant=False).sum()

    jitted = tj.jit(f, transforms=[JOINT])
    jitted(*inputs())
    assert "SAVE" in tj.last_trace(jitted).calls[0].flat_outs[0].tags


def test_a_checkpoint_inside_of_another_operation_stays_with_pytorch() -> None:
    def f(x, w):
        def branch(a):
            return checkpoint(torch.sin, a, use_reentrant=False) * 2

        return torch.cond(x.sum() > -99, branch, torch.cos, (x,)).sum()

    jitted = tj.jit(f, transforms=[JOINT], check=2)
    jitted(*inputs())
    (cond,) = (c for c in tj.last_trace(jitted).calls if c.subprograms)
    inside = [c.symbol.name for c in cond.subprograms[0].program.calls]
    assert inside == ["utils.checkpoint.checkpoint", "mul"]


class Sine:
    tj_name = "sine"

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("torch.sin", Claim(lambda x: torch.from_numpy(x.detach().numpy()).sin()))
        return (Executor("sine", claims),)


def test_executors_get_the_inlined_calls_and_none_in_training() -> None:
    f = once(use_reentrant=False)
    jitted = tj.jit(f, plugins=[Sine(), "torch"], check=2)
    x, w = inputs()
    torch.manual_seed(3)
    jitted(x, w).backward()
    x2, w2 = inputs()
    torch.manual_seed(3)
    f(x2, w2).backward()
    assert_equal((x.grad, w.grad), (x2.grad, w2.grad))
    assert tj.explain(jitted).counts().get("sine") is None
    with torch.no_grad():
        jitted(x, w)
    assert tj.explain(jitted).counts()["sine"] == 3


# --------------------------------------------------------------------------- models


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(self.step, layer, x, use_reentrant=False)
        return x

    def step(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self.drop(layer(x).tanh())


def test_parameters_of_modules_that_a_region_uses() -> None:
    torch.manual_seed(0)
    model = Tower()
    jitted = tj.jit(model, check=2)
    x = torch.rand(3, 8)
    found = []
    for m in (model, jitted):
        model.zero_grad()
        torch.manual_seed(2)
        m(x).sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    assert_equal(found[1], found[0])
    assert tj.stats(jitted).fallbacks == ()


def test_checkpoint_sequential_is_a_graph_break_and_right() -> None:
    """Dynamo does not look inside of it."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    jitted = tj.jit(lambda x: checkpoint_sequential(layers, 2, x, use_reentrant=False))
    x = torch.rand(3, 8, requires_grad=True)
    with pytest.warns(tj.TjWarning, match="checkpoint_sequential"):
        got = jitted(x)
    expected = checkpoint_sequential(layers, 2, x, use_reentrant=False)
    assert_equal(got, expected)
    assert_equal(torch.autograd.grad(got.sum(), [x]), torch.autograd.grad(expected.sum(), [x]))


LAYERS = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])


def scaled(i: int, x: torch.Tensor, k: Any) -> Any:
    return LAYERS[i](x).tanh() * k


def nested_with_numbers(x: torch.Tensor, k: Any) -> Any:
    inner = checkpoint(scaled, 1, x, k * 0, use_reentrant=False)
    return checkpoint(scaled, 0, inner, k * 2, use_reentrant=False)


def blocks_with_numbers(x: torch.Tensor, k: Any) -> Any:
    for i in range(3):
        x = x + checkpoint(scaled, i, x, k * i, use_reentrant=False)
    return x


def signs_of_zero(x: torch.Tensor, k: Any) -> Any:
    return [checkpoint(scaled, 0, x, z, use_reentrant=False) for z in (0.0, -0.0, 1.0, k)]


@pytest.mark.parametrize("f", [nested_with_numbers, blocks_with_numbers, signs_of_zero])
def test_numbers_that_are_computed_outside(f: Callable[..., Any]) -> None:
    jitted = tj.jit(f, session=tj.Session(("autograd", "torch"), overrides={"strict": True}))
    for k in (1, 2, 3, 0, 5):
        found = []
        for g in (f, jitted):
            x = torch.ones(2, 3, requires_grad=True)
            results = [*g(x, k)] if f is signs_of_zero else [g(x, k)]
            sum(y.sum() for y in results).backward()
            found.append([*(y.detach() for y in results), x.grad])
        for mine, theirs in zip(*found, strict=True):
            assert torch.equal(torch.signbit(mine), torch.signbit(theirs))
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)

"""Lowering of calls under autocast: casts, names, tags, lines,
leaves, policies, calls that stay.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.compare import assert_equal
from tj_core.extend import (
    ConfigError,
    Constant,
    PluginError,
    Replacement,
    RuleTable,
    hookimpl,
)

PLUGINS = ("torch", "autograd", "autocast")
HALF = Constant("torch.float16", torch.float16)


def bf16(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def product(x, w):
    with bf16():
        return x @ w


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)


def lowered(jitted: Any) -> tj.Trace:
    """The trace after the transform."""
    return next(t for t in tj.last_traces(jitted) if t.history[-1].name == "autocast")


def ways(jitted: Any) -> dict[str, str]:
    """The way by which each call was lowered, by its name."""
    return {c.call: c.rule for c in lowered(jitted).history[-1].changes}


def test_names_tags_and_lines_stay() -> None:
    def f(x, w):
        with bf16():
            y = tj.tag(x @ w, "SAVE")
            return F.relu(y)

    jitted = tj.jit(f)
    jitted(*arguments())
    calls = {c.label: c for c in lowered(jitted).calls}
    assert list(calls) == ["w_bf16", "x_bf16", "y", "relu"]
    assert "SAVE" in calls["y"].outputs.tags
    assert all(c.context.items == (("grad", True),) for c in calls.values())
    assert [calls[n].parent for n in calls] == ["y", "y", None, None]
    assert "x @ w" in calls["w_bf16"].source.text
    assert "relu" in calls["relu"].source.text
    assert not any("CAST_CACHE" in c.tags for c in lowered(jitted).walk())
    assert "autocast" not in str(tj.last_trace(jitted))


def test_a_program_without_autocast_is_not_touched() -> None:
    jitted = tj.jit(lambda x, w: x @ w)
    jitted(*arguments())
    assert "autocast" not in [t.history[-1].name for t in tj.last_traces(jitted)]
    assert not any(p.tags for p in tj.last_traces(jitted)[0].inputs)


def test_the_ways_of_calls() -> None:
    def f(x, w):
        with bf16():
            y = torch.tanh(x @ w)
            z, _ = F.multi_head_attention_forward(
                x, x, x, 3, 1, torch.cat([w, w, w]), None, None, None, False, 0.0, w, None
            )
            return y + z, torch.einsum("ij,jk->ik", y, w)

    jitted = tj.jit(f)
    assert_equal(jitted(*arguments()), f(*arguments()))
    found = ways(jitted)
    assert found["matmul"] == "by_casts"
    assert found["y"] == "unchanged"
    assert "by_functions" in found.values()


def test_an_argument_that_is_a_leaf_in_some_calls() -> None:
    def f(x, w):
        with bf16():
            return (x @ w).sum() + (x @ (x @ w)).sum()

    jitted = tj.jit(f)
    for leaf in (True, False, True, False):
        grads = []
        for run in (jitted, f):
            x, w = arguments()
            run(x, w if leaf else w * 1).backward()
            grads.append(w.grad)
        assert torch.equal(*grads)
    assert tj.stats(jitted).fallbacks == ()
    assert tj.stats(jitted).entries == 1  # which has two programs
    assert [p.kind for p in tj.programs(jitted) if not p.part] == ["entry", "variant"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_leaves_where_sizes_change(dynamic: bool) -> None:
    def f(x, w):
        with bf16():
            return (x @ w).sum() + (x @ (x @ w)).flatten().sum()

    jitted = tj.jit(f, dynamic=dynamic)
    for n, leaf in ((3, True), (3, False), (4, False), (4, True), (5, True)):
        grads = []
        for run in (jitted, f):
            torch.manual_seed(n)
            x, w = torch.randn(n, n), torch.randn(n, n, requires_grad=True)
            run(x, w if leaf else w * 1).backward()
            grads.append(w.grad)
        assert torch.equal(*grads)
    assert tj.stats(jitted).fallbacks == ()


def test_leaves_of_a_graph() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x, w):
            return x @ w @ w

    graph = torch.fx.symbolic_trace(Twice())
    jitted = tj.jit(graph, frontend="fx")
    for leaf in (True, False):
        grads = []
        for run in (jitted, graph):
            x, w = arguments()
            with bf16():
                out = run(x, w if leaf else w * 1)
            out.sum().backward()
            grads.append(w.grad)
        assert torch.equal(*grads)
    assert (tj.stats(jitted).entries, tj.stats(jitted).fallbacks) == (2, ())


def test_below_pytorchs_hook() -> None:
    for leaf in (True, False):
        compiled = torch.compile(product, backend="tj")
        x, w = arguments()
        w = w if leaf else w * 1
        assert_equal(compiled(x, w).detach(), product(x, w).detach())


def test_second_derivatives() -> None:
    def f(x, w):
        with bf16():
            return torch.tanh(x @ w).float().square().sum() + (x @ w).float().pow(3).sum()

    found = []
    for run in (tj.jit(f), f):
        x, w = arguments()
        (grad,) = torch.autograd.grad(run(x, w), w, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), w)
        found.append((grad.detach(), second))
    assert_equal(*found)


def test_what_became_of_each_call_is_in_the_history() -> None:
    def f(x, w):
        with bf16():
            h = torch.lstm_cell(x, (x, x), *(w.repeat(4, 1) for _ in range(2)))[0]
            return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x.t(), (x,)), h @ w

    jitted = tj.jit(f)
    assert_equal(*([t.detach() for t in run(*arguments())] for run in (jitted, f)))
    assert {"by_casts", "by_regions", "unchanged"} <= set(ways(jitted).values())


def test_a_layer_that_casts_its_weights_at_each_step() -> None:
    """The layer stays under autocast; its weights are cast once for all steps of all its calls."""
    layer = torch.nn.GRU(4, 4)

    @tj.jit
    def f(x):
        with bf16():
            return layer(layer(x)[0].float())[0]

    f(torch.ones(3, 2, 4))
    casts = [c.args[0].name for c in lowered(f).calls if c.symbol.name == "Tensor.to"]
    assert len(casts) == len(set(casts)) == 4
    assert "by_kept_casts" in ways(f).values()


# ------------------------------------------------------------------------------ the option


def test_the_option_on_a_module() -> None:
    module = torch.nn.Linear(3, 3)
    jitted = tj.jit(module, autocast=torch.bfloat16)
    x, _ = arguments()
    for run in (jitted, copy.deepcopy(jitted)):
        assert_equal(run(x).detach(), bf16()(module)(x).detach())
    assert not torch.is_autocast_enabled("cpu")
    assert list(jitted.state_dict()) == list(module.state_dict())


@pytest.mark.parametrize("wrong", [torch.float32, "bfloat16", True])
def test_the_option_wants_a_type_that_autocast_knows(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"autocast must be torch\.bfloat16 or torch\.float16"):
        tj.jit(product, autocast=wrong)


def test_the_option_inside_of_another_program() -> None:
    @tj.jit(autocast=torch.bfloat16)
    def inner(x, w):
        return x @ w

    def outer(x, w):
        return inner(x, w), x @ w

    x, w = arguments()
    expected = bf16()(torch.matmul)(x, w), x @ w
    for run in (tj.jit(outer), torch.compile(outer, backend="eager", fullgraph=True)):
        assert_equal([t.detach() for t in run(x, w)], [t.detach() for t in expected])


def test_the_option_survives_an_error() -> None:
    jitted = tj.jit(lambda x: x @ torch.ones(7, 7), autocast=torch.bfloat16)
    with pytest.raises(RuntimeError):
        jitted(torch.ones(3, 3))
    assert not torch.is_autocast_enabled("cpu")


# ------------------------------------------------------------------------------- policies


def plugin(policy: Any, key: str = "torch.matmul") -> Any:
    class Policies:
        tj_name = "policies"

        @hookimpl
        def tj_rule_tables(self):
            table = RuleTable("autocast")
            table.set(key, policy)
            return (table,)

    return Policies()


def in_half(call, edit):
    """Products in float16, their results in the type that the call has."""
    halves = [edit.call("torch.Tensor.to", value, HALF) for value in call.args]
    product = edit.call("torch.matmul", *(h.outputs for h in halves))
    name = call.outputs.dtype.name
    dtype = Constant(f"torch.{name}", getattr(torch, name))
    out = edit.call("torch.Tensor.to", product.outputs, dtype, outputs=(call.outputs.name,))
    return Replacement((*halves, product, out))


def test_a_policy_takes_the_place_of_pytorchs() -> None:
    def by_hand(x, w):
        return (x.half() @ w.half()).bfloat16()

    results = []
    for run in (tj.jit(product, plugins=[plugin(in_half), *PLUGINS]), by_hand):
        x, w = arguments()
        out = run(x, w)
        out.float().square().sum().backward()
        results.append((out.detach(), w.grad))
    assert_equal(*results)


def test_a_policy_is_for_calls_under_autocast() -> None:
    jitted = tj.jit(torch.matmul, plugins=[plugin(in_half), *PLUGINS])
    assert_equal(jitted(*arguments()).detach(), torch.matmul(*arguments()).detach())


def test_a_policy_that_has_nothing_to_say() -> None:
    jitted = tj.jit(product, plugins=[plugin(lambda call, edit: None), *PLUGINS])
    assert_equal(jitted(*arguments()).detach(), product(*arguments()).detach())


def test_a_policy_that_returns_another_type() -> None:
    def half(call, edit):
        values = [edit.call("torch.Tensor.to", value, HALF) for value in call.args]
        outs = (call.outputs.name,)
        last = edit.call("torch.matmul", *(v.outputs for v in values), outputs=outs)
        return Replacement((*values, last))

    jitted = tj.jit(product, plugins=[plugin(half), *PLUGINS])
    with pytest.raises(PluginError, match=r"policies.*Python may have read that"):
        jitted(*arguments())


# ------------------------------------------------------------------------- what stays

LIBRARY = "tj_autocast_tests"


@torch.library.custom_op(f"{LIBRARY}::multiplied", mutates_args=())
def multiplied(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).float()


@multiplied.register_fake
def _(x, w):
    return x.new_empty(x.shape[0], w.shape[1])


def test_kernels_of_extensions_run_under_autocast() -> None:
    def f(x, w):
        with bf16():
            return multiplied(x, w)

    x, w = (t.detach() for t in arguments())
    assert not torch.equal(f(x, w), x @ w)
    jitted = tj.jit(f)
    assert_equal(jitted(x, w), f(x, w))
    (call,) = tj.last_trace(jitted).calls
    assert call.context.get("autocast.cpu") == "bfloat16"


@pytest.mark.parametrize("f", [F.bilinear, lambda x, y, w: torch.linalg.pinv(x) @ y])
def test_kernels_of_pytorchs_that_meet_autocast_again(f: Any) -> None:
    def within(x, y, w):
        with bf16():
            return f(x, y, w)

    args = torch.randn(2, 3), torch.randn(2, 4), torch.randn(5, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is run is not what fake tensors say
        assert_equal(tj.jit(within)(*args), within(*args))


def test_a_backward_under_autocast_is_not_that_of_eager() -> None:
    """Known: PyTorch advises against it, and tj's backward runs outside of it."""
    grads = []
    for run in (tj.jit(torch.matmul), torch.matmul):
        x, w = arguments()
        out = run(x, w).sum()
        with bf16():
            out.backward()
        grads.append(w.grad)
    torch.testing.assert_close(*grads, rtol=0.02, atol=0.02)

"""Guards of entries: a changed condition retraces, an unchanged one never does.

The list is that of everything a PyTorch program can read; each test changes one thing and compares
with eager, and says whether a new entry was needed.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_retraces
from tj_core.extend import RuleTable, hookimpl
from torch import nn

check = assert_retraces

X = torch.arange(6.0).reshape(2, 3)


def test_unchanged_conditions_never_retrace() -> None:
    def f(x: torch.Tensor, k: int = 2) -> torch.Tensor:
        return x * k

    g = tj.jit(f)
    check(f, g, X, retraces=True)
    for _ in range(5):
        check(f, g, X + 1, retraces=False)
    assert tj.stats(g).hits == 5
    assert tj.stats(g).calls == 6


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (X, X.double()),
        (X, X[:, :2]),
        (X, X.t().contiguous().t()),
        (X, X.clone().requires_grad_()),
        (X, X.to(torch.complex64)),
        (X, X.unsqueeze(0)),
        (X, X.to("meta")),
    ],
    ids=["dtype", "shape", "strides", "requires_grad", "complex", "rank", "device"],
)
def test_tensor_metadata(first: torch.Tensor, second: torch.Tensor) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_floating_point() else x * 3

    g = tj.jit(f)
    check(f, g, first, retraces=True)
    if second.is_meta:
        assert g(second).is_meta
    else:
        check(f, g, second)
    check(f, g, first, retraces=False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, 0.5),
        (0.5, None),
        ((), (1.0,)),
        ([], [1.0]),
        ({}, {"a": 1.0}),
        (1, 2),
        (1, True),
        (1.0, 2.0),
        ("a", "b"),
        (torch.float32, torch.float64),
    ],
    ids=str,
)
def test_plain_arguments(first: Any, second: Any) -> None:
    def f(x: torch.Tensor, k: Any) -> torch.Tensor:
        if k is None:
            return x
        if isinstance(k, torch.dtype):
            return x.to(k)
        if isinstance(k, dict):
            return x + sum(k.values())
        if isinstance(k, str):
            return x + len(k) if k == "a" else x - len(k)
        return x + (sum(k) + len(k) if isinstance(k, (list, tuple)) else k)

    g = tj.jit(f)
    check(f, g, X, first, retraces=True)
    check(f, g, X, second)
    check(f, g, X, first, retraces=False)


def test_keyword_arguments_and_defaults() -> None:
    def f(x: torch.Tensor, *rest: float, scale: float = 1.0, **more: float) -> torch.Tensor:
        return x * scale + sum(rest) + sum(more.values())

    g = tj.jit(f)
    check(f, g, X, retraces=True)
    check(f, g, X, 1.0, 2.0, retraces=True)
    check(f, g, X, scale=3.0, retraces=True)
    check(f, g, X, a=1.0, retraces=True)
    check(f, g, X, b=1.0, retraces=True)
    check(f, g, X, retraces=False)


def test_closure_cell_is_rebound() -> None:
    def make() -> tuple[Callable[..., Any], Callable[[float], None]]:
        k = 2.0

        def f(x: torch.Tensor) -> torch.Tensor:
            return x * k

        def rebind(value: float) -> None:
            nonlocal k
            k = value

        return f, rebind

    f, rebind = make()
    g = tj.jit(f)
    check(f, g, X, retraces=True)
    rebind(3.0)
    check(f, g, X, retraces=True)


SCALE = 2.0
WEIGHTS: list[float] = [1.0]
TABLE: dict[str, float] = {"a": 1.0}
TENSOR = torch.tensor(2.0)


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return helper(x) * SCALE + WEIGHTS[0] + TABLE["a"] + TENSOR

    g = tj.jit(f)
    check(f, g, X, retraces=True)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    check(f, g, X, retraces=True)
    monkeypatch.setitem(globals(), "WEIGHTS", [7.0])
    check(f, g, X, retraces=True)
    monkeypatch.setitem(TABLE, "a", 9.0)
    check(f, g, X, retraces=True)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    check(f, g, X, retraces=True)
    monkeypatch.setitem(globals(), "TENSOR", torch.tensor(3.0, dtype=torch.float64))
    check(f, g, X, retraces=True)
    monkeypatch.setitem(globals(), "TENSOR", torch.tensor(4.0, dtype=torch.float64))
    check(f, g, X)


def test_list_and_dict_mutation() -> None:
    items = [1.0, 2.0]

    def f(x: torch.Tensor) -> torch.Tensor:
        for item in items:
            x = x + item
        return x

    g = tj.jit(f)
    check(f, g, X, retraces=True)
    items.append(3.0)
    check(f, g, X, retraces=True)
    items[0] = 5.0
    check(f, g, X, retraces=True)


class Holder:
    gain = 2.0

    def __init__(self) -> None:
        self.bias = 1.0

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain + self.bias


def test_object_attribute_and_class_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder()
    g = tj.jit(holder.apply)
    check(holder.apply, g, X, retraces=True)
    holder.bias = 4.0
    check(holder.apply, g, X, retraces=True)
    monkeypatch.setattr(Holder, "gain", 6.0)
    check(holder.apply, g, X, retraces=True)
    check(holder.apply, g, X, retraces=False)


def test_module_attribute_of_a_python_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * math.tau

    g = tj.jit(f)
    check(f, g, X, retraces=True)
    monkeypatch.setattr(math, "tau", 1.0)
    check(f, g, X, retraces=True)


# --------------------------------------------------------------------------- modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b: nn.Module | None = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x) * self.scale
        if self.b is not None:
            x = self.b(x)
        return self.drop(x)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def test_module_state(net: Net) -> None:
    g = tj.jit(net)
    check(net, g, X, retraces=True)
    net.scale = 2.0
    check(net, g, X, retraces=True)
    with torch.no_grad():
        net.a.weight.mul_(2)
    check(net, g, X, retraces=False)
    net.a.weight.data = torch.ones(3, 3)
    check(net, g, X)
    net.a.weight = nn.Parameter(torch.zeros(3, 3))
    check(net, g, X)
    net.load_state_dict({k: torch.randn_like(v) for k, v in net.state_dict().items()})
    check(net, g, X)
    net.a.weight.requires_grad_(False)
    check(net, g, X, retraces=True)


def test_submodule_replaced_removed_appended(net: Net) -> None:
    g = tj.jit(net)
    check(net, g, X, retraces=True)
    net.b = nn.LayerNorm(3)
    check(net, g, X, retraces=True)
    net.b = None
    check(net, g, X, retraces=True)
    layers = nn.ModuleList([nn.Linear(3, 3)])

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    stack = Stack()
    h = tj.jit(stack)
    check(stack, h, X, retraces=True)
    layers.append(nn.Linear(3, 3))
    check(stack, h, X, retraces=True)


def test_train_and_eval(net: Net) -> None:
    g = tj.jit(net)
    check(net, g, X, retraces=True)
    net.train()
    for seed in range(3):
        torch.manual_seed(seed)
        expected = net(X)
        torch.manual_seed(seed)
        torch.testing.assert_close(g(X), expected, rtol=0, atol=0)
    g.eval()
    assert not net.training
    check(net, g, X, retraces=False)


def test_module_dtype(net: Net) -> None:
    g = tj.jit(net)
    check(net, g, X, retraces=True)
    net.double()
    check(net, g, X.double(), retraces=True)


def test_instance_forward_replaced(net: Net) -> None:
    g = tj.jit(net)
    check(net, g, X, retraces=True)
    net.a.forward = lambda x: x + 100  # type: ignore[method-assign]
    check(net, g, X, retraces=True)


def test_class_forward_replaced(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    g = tj.jit(net)
    check(net, g, X, retraces=True)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x - 1)
    check(net, g, X, retraces=True)
    monkeypatch.setattr(Net, "forward", lambda self, x: x * 7)
    check(net, g, X, retraces=True)
    monkeypatch.undo()
    check(net, g, X, retraces=False)


def test_class_forward_replaced_of_a_module_that_a_function_calls(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return net(x) + 1

    g = tj.jit(f)
    check(f, g, X, retraces=True)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x - 1)
    check(f, g, X, retraces=True)


def test_hooks_on_root_and_submodule(net: Net) -> None:
    g = tj.jit(net)
    check(net, g, X, retraces=True)
    handles = [net.a.register_forward_hook(lambda m, i, o: o + 1)]
    check(net, g, X, retraces=True)
    handles.append(net.register_forward_pre_hook(lambda m, i: (i[0] * 2,)))
    check(net, g, X, retraces=True)
    handles.append(g.register_forward_hook(lambda m, i, o: o * 3))
    check(net, g, X, retraces=True)
    for handle in handles:
        handle.remove()
    check(net, g, X, retraces=False)


def test_global_module_hooks(net: Net) -> None:
    g = tj.jit(net)
    check(net, g, X, retraces=True)
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o + 1)
    try:
        check(net, g, X, retraces=True)
    finally:
        handle.remove()
    check(net, g, X, retraces=False)
    handle = nn.modules.module.register_module_forward_pre_hook(lambda m, i: (i[0] + 1,))
    try:
        check(net, g, X, retraces=True)
    finally:
        handle.remove()


# --------------------------------------------------------------------------- global state


def test_grad_mode_and_inference_mode(net: Net) -> None:
    g = tj.jit(net)
    assert g(X).requires_grad
    with torch.no_grad():
        assert not g(X).requires_grad
        check(net, g, X, retraces=False)
    with torch.inference_mode():
        assert g(X).is_inference()
    assert g(X).requires_grad
    assert not g(X).is_inference()


def test_autocast() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x @ x.t()
        return y * 2 if y.dtype is torch.bfloat16 else y * 3

    g = tj.jit(f)
    check(f, g, X, retraces=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(f, g, X, retraces=True)
        check(f, g, X, retraces=False)
    check(f, g, X, retraces=False)
    with torch.autocast("cpu", dtype=torch.float16):
        check(f, g, X, retraces=True)


def test_default_dtype_and_device() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3)

    g = tj.jit(f)
    check(f, g, X, retraces=True)
    torch.set_default_dtype(torch.float64)
    try:
        check(f, g, X, retraces=True)
    finally:
        torch.set_default_dtype(torch.float32)
    check(f, g, X, retraces=False)

    def h(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(3)

    j = tj.jit(h)
    assert j(X).device.type == "cpu"
    with torch.device("meta"):
        assert j(X).device.type == "meta"
    assert j(X).device.type == "cpu"


def test_deterministic_flag_and_sdpa_backend() -> None:
    def f(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    q = torch.randn(1, 2, 4, 8)
    g = tj.jit(f)
    check(f, g, q, retraces=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        check(f, g, q, retraces=True)
    check(f, g, q, retraces=False)
    torch.use_deterministic_algorithms(True)
    try:
        check(f, g, q, retraces=True)
    finally:
        torch.use_deterministic_algorithms(False)


class Flagged:
    """A plugin whose kernels for sine read a flag of its own package."""

    tj_name = "flagged"

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[tuple[str, ...]], ...]:
        table: RuleTable[tuple[str, ...]] = RuleTable("flags")
        table.set("torch.sin", ("acme_kernels.fast", "acme_kernels.nothing_here"))
        return (table,)


def test_flags_that_a_plugin_says_an_operation_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = types.ModuleType("acme_kernels")
    package.state, package.fast = False, lambda: package.state
    monkeypatch.setitem(sys.modules, "acme_kernels", package)
    jitted = tj.jit(lambda x: x.sin(), plugins=[Flagged(), "torch"])
    other = tj.jit(lambda x: x.cos(), plugins=[Flagged(), "torch"])
    for fast in (False, True, True):
        package.state = fast
        for g in (jitted, other):
            g(X)
    assert (tj.stats(jitted).misses, tj.stats(other).misses) == (2, 1)


def test_matmul_precision_and_mkldnn() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x @ x.t()

    before = torch.get_float32_matmul_precision()
    # Of the settings per backend, which 2.15 guards, too, this sets some that were not set.
    torch.set_float32_matmul_precision(before)
    g = tj.jit(f)
    check(f, g, X, retraces=True)
    torch.set_float32_matmul_precision("medium" if before != "medium" else "high")
    try:
        check(f, g, X, retraces=True)
    finally:
        torch.set_float32_matmul_precision(before)
    check(f, g, X, retraces=False)
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(not enabled)
    try:
        check(f, g, X, retraces=True)
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def test_guards_are_shown(net: Net) -> None:
    g = tj.jit(net)
    assert tj.guards(g) == ()
    g(X)
    texts = [str(guard) for guard in tj.guards(g)]
    assert any("Linear.forward is unchanged" in text for text in texts)
    assert any("L['args'][0]" in text for text in texts)

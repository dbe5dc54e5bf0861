"""Operations that take most of training's time: exact gradients, and no more saved than needed.

Most have no rule of tj-autograd's own, because the derived one is as good: it runs eager's
formulas, and saves no more. This file checks that for each, with all of its options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.sampled(8)

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A call of tensors of these shapes; ``more`` runs cheap operations that eager does not."""

    fn: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    more: bool = False


def case(fn: Callable[..., torch.Tensor], *shapes: tuple[int, ...], more: bool = False) -> Case:
    return Case(fn, shapes, more)


I = torch.tensor([0, 2, 1, 2, 4])  # noqa: E741 - indices of 5 rows
MASK = torch.tensor([[True, False, True], [True, True, True]])
QKV = ((2, 4, 3, 8),) * 3
SHARED = ((2, 4, 3, 8), (2, 2, 3, 8), (2, 2, 3, 8))
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.0])
sdpa = F.scaled_dot_product_attention

CASES: dict[str, Case] = {
    "linear": case(lambda x, w, b: F.linear(x, w, b) * 1, (2, 3, 4), (5, 4), (5,)),
    "linear, no bias": case(F.linear, (3, 4), (5, 4)),
    "linear, vector": case(lambda x, w, b: F.linear(x, w, b) * 1, (4,), (5, 4), (5,)),
    "linear, no output features": case(F.linear, (3, 4), (4,)),
    "matmul, 1-D 1-D": case(torch.matmul, (4,), (4,)),
    "matmul, 1-D 2-D": case(torch.matmul, (4,), (4, 3)),
    "matmul, 2-D 1-D": case(torch.matmul, (3, 4), (4,)),
    "matmul, 2-D": case(torch.matmul, (3, 4), (4, 5)),
    "matmul, 3-D 1-D": case(torch.matmul, (2, 3, 4), (4,)),
    "matmul, 1-D 3-D": case(torch.matmul, (4,), (2, 4, 3)),
    "matmul, 3-D 2-D": case(torch.matmul, (2, 3, 4), (4, 5)),
    "matmul, 2-D 3-D": case(torch.matmul, (3, 4), (2, 4, 5)),
    "matmul, broadcast": case(torch.matmul, (2, 1, 3, 4), (3, 4, 2), more=True),
    "matmul, empty": case(torch.matmul, (0, 4), (4, 5)),
    "sdpa": case(sdpa, *QKV),
    "sdpa, causal": case(lambda q, k, v: sdpa(q, k, v, is_causal=True, scale=0.3), *QKV),
    "sdpa, mask": case(lambda q, k, v: sdpa(q, k, v, MASK[:1].expand(3, 3)), *QKV),
    "sdpa, mask with gradient": case(lambda q, k, v, m: sdpa(q, k, v, m), *QKV, (3, 3), more=True),
    "sdpa, dropout": case(lambda q, k, v: sdpa(q, k, v, dropout_p=0.4), *QKV, more=True),
    "sdpa, grouped": case(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), *SHARED, more=True),
    "layer_norm": case(lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
    "layer_norm, two dims": case(lambda x, w: F.layer_norm(x, (3, 4), w), (2, 3, 4), (3, 4)),
    "layer_norm, plain": case(lambda x: F.layer_norm(x, (4,), eps=1e-3), (3, 4)),
    "rms_norm": case(lambda x, w: F.rms_norm(x, (4,), w), (3, 4), (4,), more=True),
    "rms_norm, plain": case(lambda x: F.rms_norm(x, (4,), eps=1e-3), (3, 4), more=True),
    "gelu": case(F.gelu, (3, 4)),
    "gelu, tanh": case(lambda x: F.gelu(x, approximate="tanh"), (3, 4)),
    "silu": case(F.silu, (3, 4)),
    "softmax": case(lambda x: F.softmax(x, -1), (3, 4)),
    "softmax, first dim": case(lambda x: F.softmax(x, 0), (3, 4)),
    "softmax, in float32": case(lambda x: F.softmax(x, -1, dtype=torch.float32), (3, 4), more=True),
    "log_softmax": case(lambda x: F.log_softmax(x, -1), (3, 4)),
    "cross_entropy": case(lambda x: F.cross_entropy(x, I[:3]), (3, 4)),
    "cross_entropy, ignoring": case(lambda x: F.cross_entropy(x, I[:3], ignore_index=2), (3, 4)),
    "cross_entropy, weighted": case(lambda x: F.cross_entropy(x, I[:3], WEIGHT.to(x)), (3, 4)),
    "cross_entropy, sum": case(lambda x: F.cross_entropy(x, I[:3], reduction="sum"), (3, 4)),
    "cross_entropy, each": case(lambda x: F.cross_entropy(x, I[:3], reduction="none"), (3, 4)),
    "cross_entropy, smooth": case(
        lambda x: F.cross_entropy(x, I[:3], WEIGHT.to(x), ignore_index=0, label_smoothing=0.2),
        (3, 4),
        more=True,
    ),
    "cross_entropy, distributions": case(lambda x, y: F.cross_entropy(x, y), (3, 4), (3, 4)),
    "cross_entropy, images": case(lambda x: F.cross_entropy(x, I[:4].view(2, 2)), (2, 5, 2)),
    "embedding": case(lambda w: F.embedding(I, w), (5, 4)),
    "embedding, padding": case(lambda w: F.embedding(I, w, padding_idx=2), (5, 4)),
    "embedding, negative padding": case(lambda w: F.embedding(I, w, padding_idx=-1), (5, 4)),
    "embedding, by frequency": case(lambda w: F.embedding(I, w, scale_grad_by_freq=True), (5, 4)),
    "dropout": case(lambda x: F.dropout(x, 0.3), (6, 8), more=True),
    "dropout, laid out by columns": case(lambda x: F.dropout(x.t() * 1, 0.3), (6, 8), more=True),
    "dropout, torch.dropout": case(lambda x: torch.dropout(x, 0.7, True), (6, 8), more=True),
    "dropout, none": case(lambda x: F.dropout(x, 0.0) * 2, (6, 8)),
    "dropout, all": case(lambda x: F.dropout(x, 1.0), (6, 8), more=True),
    "dropout, evaluation": case(lambda x: F.dropout(x, 0.5, training=False) * 2, (6, 8)),
    "dropout, in place": case(lambda x: F.dropout(x * 2, 0.5, inplace=True), (6, 8), more=True),
    "dropout, empty": case(lambda x: F.dropout(x, 0.5) * 2, (0, 8)),
    "conv1d": case(F.conv1d, (2, 3, 7), (4, 3, 3), (4,)),
    "conv2d": case(F.conv2d, (2, 3, 5, 5), (4, 3, 3, 3), (4,)),
    "conv2d, no bias": case(F.conv2d, (2, 3, 5, 5), (4, 3, 3, 3)),
    "conv2d, strided": case(
        lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 2)), (2, 3, 5, 5), (4, 3, 3, 3)
    ),
    "conv2d, same": case(lambda x, w: F.conv2d(x, w, padding="same"), (2, 3, 5, 5), (4, 3, 3, 3)),
    "conv2d, dilated": case(lambda x, w: F.conv2d(x, w, dilation=2), (2, 3, 7, 7), (4, 3, 3, 3)),
    "conv2d, groups": case(
        lambda x, w, b: F.conv2d(x, w, b, groups=2), (2, 4, 5, 5), (6, 2, 3, 3), (6,)
    ),
    "conv2d, no batch": case(lambda x, w: F.conv2d(x, w) * 1, (3, 5, 5), (4, 3, 3, 3)),
    "conv3d": case(F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2), (3,)),
    "conv_transpose2d": case(
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1),
        (2, 3, 4, 4),
        (3, 4, 3, 3),
        (4,),
    ),
    "conv_transpose1d, groups": case(
        lambda x, w: F.conv_transpose1d(x, w, groups=2, padding=1), (2, 4, 6), (4, 2, 3)
    ),
}
NO_DIFFERENCES = {
    "embedding, padding",
    "embedding, negative padding",
    "embedding, by frequency",
} | {
    "matmul, empty",
    "dropout, empty",
}
"""Gradients that finite differences cannot check; they are compared with eager's."""


def arguments(c: Case, dtype: torch.dtype) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in c.shapes]
    return tuple(t.to(dtype).requires_grad_() for t in made)


def compiled(c: Case) -> Any:
    return tj.jit(lambda *args: c.fn(*args))


# ---------------------------------------------------------------------------- the same gradients


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name: str) -> None:
    c = CASES[name]
    run = compiled(c)

    def seeded(*args: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return run(*args)

    args = arguments(c, torch.float64)
    if "float32" in name:
        assert torch.autograd.gradcheck(seeded, args, eps=1e-2, atol=1e-2, fast_mode=True)
    elif name not in NO_DIFFERENCES:
        assert torch.autograd.gradcheck(seeded, args, fast_mode=True)
    else:
        seeded(*args)
    assert tj.explain(run).declined == ()
    assert tj.explain(run).gradients


def step(fn: Callable[..., torch.Tensor], args: Tensors) -> list[torch.Tensor]:
    """Result, gradients for a tangent that is no constant, random numbers drawn."""
    torch.manual_seed(0)
    out = fn(*args)
    drawn = torch.rand(2)
    tangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad(out, args, tangent), drawn]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_eagers_to_the_bit(name: str, dtype: torch.dtype) -> None:
    c = CASES[name]
    expected = step(c.fn, arguments(c, dtype))
    for mine, theirs in zip(step(compiled(c), arguments(c, dtype)), expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def test_a_sparse_gradient() -> None:
    w = torch.randn(5, 4, requires_grad=True)

    def f(w: torch.Tensor) -> torch.Tensor:
        return F.embedding(I, w, sparse=True).sin()

    grads = [torch.autograd.grad(fn(w).sum(), w)[0] for fn in (f, tj.jit(f))]
    assert all(g.is_sparse for g in grads)
    assert torch.equal(grads[0].to_dense(), grads[1].to_dense())


# ---------------------------------------------------------------------------- at no more cost


def saved_bytes(fn: Callable[..., torch.Tensor], args: Tensors) -> int:
    """Bytes kept for the backward beside the arguments and the result."""
    sizes: dict[int, int] = {}
    alive = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        alive.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = fn(*args)
    known = {t.untyped_storage().data_ptr() for t in (*args, out, I, MASK, WEIGHT)}
    return sum(size for where, size in sizes.items() if where not in known)


FREE = (
    "view",
    "expand",
    "transpose",
    "as_strided",
    "squeeze",
    "permute",
    "alias",
    "detach",
    "empty",
)
"""In the names of operators that make views or allocate memory."""


def operators(fn: Callable[..., torch.Tensor], args: Tensors) -> int:
    """Number of operators that compute something in a forward and its backward."""
    out = fn(*args)
    tangent = torch.ones_like(out)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        torch.autograd.grad(fn(*args), args, tangent)
    names = [
        e.name for e in recorded.events() if e.name.startswith("aten::") and not e.cpu_children
    ]
    return sum(not any(free in name for free in FREE) for name in names)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # PyTorch 2.10 says so
@pytest.mark.parametrize("name", CASES)
def test_no_more_is_saved_or_run_than_eager_does(name: str) -> None:
    c, args = CASES[name], arguments(CASES[name], torch.float32)
    run = compiled(c)
    step(run, args)
    assert saved_bytes(run, args) <= saved_bytes(c.fn, args)
    if not c.more:
        assert operators(run, args) <= operators(c.fn, args)


# ---------------------------------------------------------------------------- less


def whose(run: Any) -> set[tuple[str, str]]:
    return {(change.plugin, change.rule) for change in tj.explain(run).gradients}


@pytest.mark.parametrize(
    ("name", "part"), [("rms_norm", 0.3), ("dropout", 0.25), ("sdpa, dropout", 0.9)]
)
def test_less_is_saved(name: str, part: float) -> None:
    """rms_norm's intermediates are recomputed; dropout saves a mask of one byte per element."""
    c, args = CASES[name], arguments(CASES[name], torch.float32)
    run = compiled(c)
    step(run, args)
    assert 0 < saved_bytes(run, args) <= part * saved_bytes(c.fn, args)


def test_dropouts_own_rule_gives_way_to_a_plugins() -> None:
    from tj_autograd.joint.rules import GradRule
    from tj_core.extend import RuleTable, hookimpl

    class Mine:
        TJ_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def tj_rule_tables(options: Any) -> Any:
            table: RuleTable[Any] = RuleTable("grad")
            table.set("torch.nn.functional.dropout", GradRule(forward, lambda s, g: (g * s[0],)))
            return (table,)

    def forward(x: torch.Tensor, p: float = 0.5) -> Any:
        factors = torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)
        return x * factors, (factors,)

    c, args = CASES["dropout"], arguments(CASES["dropout"], torch.float32)
    key = "torch.nn.functional.dropout"
    for plugins, owner in (
        ([Mine, "torch", "autograd"], "Mine"),
        (["torch", "autograd"], "autograd"),
    ):
        run = tj.jit(lambda *args: c.fn(*args), session=tj.Session(plugins))
        assert all(map(torch.equal, step(run, args), step(c.fn, args)))
        assert whose(run) == {(owner, key)}


def test_equal_layers_apply_a_rule_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tj_autograd.joint import lookup

    applied = []
    real = lookup.apply_rule
    monkeypatch.setattr(lookup, "apply_rule", lambda *a: applied.append(a) or real(*a))

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = F.dropout(x * 2, 0.5)
        return F.dropout(x, 0.1)

    args = (torch.randn(3, 4, requires_grad=True),)
    assert all(map(torch.equal, step(tj.jit(f), args), step(f, args)))
    assert len(applied) == 2

"""Programs whose regions Inductor compiles, against eager."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.compare import call_differences
from tj_conformance.oracle.twins import clone_tree
from tj_core.extend import TjWarning
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.sampled(8)

Program = Callable[..., Any]


def regions(jitted: Any, which: str | None = None) -> list[list[str]]:
    """The operators of each region, in order."""
    trace = tj.last_trace(jitted, which) if which else tj.last_trace(jitted)
    found = [c for c in trace.calls if c.symbol.path.startswith("region_")]
    return [[i.symbol.path.partition(".")[0] for i in c.body.calls] for c in found]


def hold(jitted: Program, f: Program, *args: Any) -> Any:
    """Results, written arguments, gradients: all as eager's, but for the last bits of values."""
    mine, theirs = clone_tree((args, {})), clone_tree((args, {}))
    got, expected = jitted(*mine[0]), f(*theirs[0])
    found = call_differences(got, mine, expected, theirs)
    assert [str(d) for d in found if not d.rounding] == []
    for result in (got, expected):
        leaves = torch.utils._pytree.tree_leaves(result)
        wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        if wanted:
            sum(x.float().sum() if x.is_floating_point() else x.sum() for x in wanted).backward()
    for a, b in zip(mine[0], theirs[0], strict=True):
        if isinstance(a, torch.Tensor) and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)
            assert a.grad.stride() == b.grad.stride()
    return got


def X(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


PROGRAMS: dict[str, tuple[Program, Callable[[], tuple[Any, ...]]]] = {
    "pointwise": (lambda x, y: (x * y + x).tanh() - y.sigmoid(), lambda: (X(9, 5), X(9, 5))),
    "broadcast": (lambda x, y: (x * y).exp() + y, lambda: (X(9, 5), X(5))),
    "reduction": (lambda x: (x.exp().sum(-1, keepdim=True) * x).mean(0), lambda: (X(9, 5),)),
    "scalars": (lambda x, n, a: (x * n + a).relu() / 3, lambda: (X(4, 4), 3, 0.5)),
    "product": (lambda x, w: F.gelu(x @ w) * 2, lambda: (X(8, 16), X(16, 12))),
    "linear": (lambda x, w, b: F.silu(F.linear(x, w, b)).sum(), lambda: (X(8, 16), X(4, 16), X(4))),
    "norm": (
        lambda x, w, b: F.layer_norm(x * 2, (6,), w, b).relu() + x,
        lambda: (X(5, 6), X(6), X(6)),
    ),
    "softmax": (lambda x: (F.softmax(x * 2, -1) * x).sum(-1), lambda: (X(7, 9),)),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x * 2, t),
        lambda: (X(7, 9), torch.randint(0, 9, (7,))),
    ),
    "convolution": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)).mean((2, 3)),
        lambda: (X(2, 3, 8, 8), X(4, 3, 3, 3)),
    ),
    "views in": (lambda x: (x.view(3, 4).t() * 2).exp() + 1, lambda: (X(12),)),
    "a view out": (lambda x: (x * 2).exp().view(-1)[2:], lambda: (X(3, 4),)),
    "a value and its view": (
        lambda x: (lambda y: (y, y.t(), y[0]))((x * 2).exp()),
        lambda: (X(3, 4),),
    ),
    "expanded": (
        lambda x: (x.expand(4, 3) * 2).cumsum(0) + 1,
        lambda: (X(1, 3),),
    ),
    "cat and stack": (
        lambda x, y: torch.stack((torch.cat((x, y)) * 2, torch.cat((y, x)))) + 1,
        lambda: (X(3, 2), X(3, 2)),
    ),
    "indexed": (lambda x: (x[:, [0, 2]] * 2).sum(0) + 1, lambda: (X(5, 4),)),
    "masked": (lambda x: x.masked_fill(x > 0, 0.0).exp() * 2, lambda: (X(5, 4),)),
    "where": (lambda x, y: torch.where(x > y, x * 2, y) + 1, lambda: (X(5, 4), X(5, 4))),
    "embedding": (
        lambda i, w: F.embedding(i, w) * 2 + 1,
        lambda: (torch.randint(0, 10, (4, 3)), X(10, 5)),
    ),
    "integers": (
        lambda i: ((i + 2) * i // 3, i.float().sqrt() + 1),
        lambda: (torch.randint(1, 10, (4, 3)),),
    ),
    "no dimensions": (lambda x, y: (x * y).exp() + x, lambda: (X(), X())),
    "permuted": (
        lambda x: (x.permute(2, 0, 1) * 2).exp() + 1,
        lambda: (X(2, 3, 4),),
    ),
    "channels last": (
        lambda x: (x * 2).exp() + 1,
        lambda: (X(2, 3, 4, 5, grad=False).to(memory_format=torch.channels_last),),
    ),
    "written in place": (
        lambda x: x.mul_(2).add_(1).exp() + x,
        lambda: (X(3, 4, grad=False),),
    ),
    "random": (
        lambda x: F.dropout(x * 2, 0.0, training=True) * 3 + 1,
        lambda: (X(3, 4),),
    ),
    "returned twice": (lambda x: (lambda y: (y, y))(x * 2 + 1), lambda: (X(3, 4),)),
    "an argument beside": (lambda x: (x, x * 2 + 1), lambda: (X(3, 4),)),
    "equal results": (
        lambda x: ((x * 2 + 1).clone(), (x * 2 + 1).clone()),
        lambda: (X(3, 4, grad=False),),
    ),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_equal_to_eager(name: str, fusing: Any) -> None:
    f, arguments = PROGRAMS[name]
    torch.manual_seed(0)
    jitted = fusing(f)
    hold(jitted, f, *arguments())
    assert tj.stats(jitted).fallbacks == ()
    assert regions(jitted), tj.explain(jitted)


@pytest.mark.slow
def test_all_programs_together_are_one_program(fusing: Any) -> None:
    """Also: values of one part are no business of another's regions."""
    torch.manual_seed(0)
    chosen = [PROGRAMS[name] for name in ("pointwise", "softmax", "indexed", "masked", "norm")]
    arguments = [make() for _, make in chosen]
    counts = [len(a) for a in arguments]

    def f(*flat: Any) -> Any:
        results, values = [], list(flat)
        for (g, _), count in zip(chosen, counts, strict=True):
            results.append(g(*values[:count]))
            del values[:count]
        return results

    hold(fusing(f), f, *(a for group in arguments for a in group))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_rounds_where_eager_rounds(dtype: torch.dtype, fusing: Any) -> None:
    """Between fused operations too: equal to the bit for operations that are rounded exactly."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return ((x * 1.001 + y) * 3 - x) * y, (x.float() * 2 + 1).to(dtype) * y

    x, y = torch.randn(64, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype)
    jitted = fusing(f)
    assert all(map(torch.equal, jitted(x, y), f(x, y)))
    assert len(regions(jitted)) == 1
    fast = fusing(f, {"emulate_precision": False})
    assert not all(map(torch.equal, fast(x, y), f(x, y)))
    for a, b in zip(fast(x, y), f(x, y), strict=True):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)


@pytest.mark.slow
def test_equal_layers_are_compiled_once(fusing: Any) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
            self.n = torch.nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.b(F.gelu(self.a(self.n(x)))).tanh() * 0.5

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(6)))
    eager = copy.deepcopy(model)
    jitted = fusing(model)
    x = torch.randn(4, 8)
    jitted(x).square().sum().backward()
    eager(x).square().sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    found = [c.symbol for c in tj.last_trace(jitted).calls if "region_" in c.symbol.path]
    assert len(found) >= 3, "six layers, in pairs"
    assert len(set(found)) <= 2, "six layers, in pairs, and one less in each"


@pytest.mark.slow
def test_kernels_of_their_own_are_eagers(fusing: Any) -> None:
    """Of three products nothing is computed together."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    jitted = fusing(layers)
    hold(jitted, layers, X(2, 8))
    assert regions(jitted) == []
    assert "each of its calls is a kernel of its own" in str(tj.explain(jitted))
    assert [c.symbol.path for c in tj.last_trace(jitted).calls] == ["nn.functional.linear"] * 3
    hold(fusing(activated := torch.nn.Sequential(*layers, torch.nn.GELU())), activated, X(2, 8))


def test_parameters_in_inference(fusing: Any) -> None:
    """Their views require gradients in PyTorch, under ``no_grad`` too; nothing comes of that."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU())
    jitted, x = fusing(model), torch.randn(3, 8)
    with torch.no_grad():
        got = jitted(x)
        torch.testing.assert_close(got, model(x))
    assert (got.requires_grad, bool(regions(jitted))) == (False, True)


@pytest.mark.slow
def test_two_programs_in_turns(fusing: Any) -> None:
    """One session, values of equal names in both: neither sees the other's."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).exp() @ x.t()).sum(0) * 3

    def g(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).sin() @ x).sum(0) * 3

    first = fusing(f)
    second = tj.jit(g, session=first.__tj__.session)
    x = torch.randn(6, 6)
    for _ in range(2):
        xs = [x.clone().requires_grad_() for _ in range(4)]
        results = [first(xs[0]), second(xs[1]), f(xs[2]), g(xs[3])]
        for r in results:
            r.sum().backward()
        torch.testing.assert_close(xs[0].grad, xs[2].grad)
        torch.testing.assert_close(xs[1].grad, xs[3].grad)


@pytest.mark.slow
def test_threads_compile_and_run(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp().sum(0) + 1

    jitted = fusing(f)
    inputs = [torch.randn(n, 3) for n in (2, 3, 4, 5)]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = jitted(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, x in enumerate(inputs):
        torch.testing.assert_close(found[i], f(x))


def test_gradients_of_gradients(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.tanh() * x.exp()).sum()

    results = []
    for g in (fusing(f), f):
        torch.manual_seed(0)
        x = torch.randn(5, 4, requires_grad=True)
        (first,) = torch.autograd.grad(g(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        results.append((first, second))
    torch.testing.assert_close(*results)


def test_what_has_no_elements_runs_one_by_one(fusing: Any) -> None:
    """Inductor returns other strides then."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + 1

    hold(jitted := fusing(f), f, X(0, 4))
    assert regions(jitted) == []


def test_autocast_that_is_lowered_is_fused() -> None:
    pytest.importorskip("tj_autocast")

    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.tanh(x @ w).exp() * 2 + w.sum()

    plugins = ("inductor", "autograd", "autocast", "torch")
    jitted = tj.jit(f, session=tj.Session(plugins, overrides={"check": 2}))
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    out = jitted(x, w)
    out.sum().backward()
    for which in ("forward", "backward"):
        assert any(c.executor == "inductor" for c in tj.last_trace(jitted, which).calls)
    mine, w.grad = w.grad, None
    expected = f(x, w)
    expected.sum().backward()
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(mine, w.grad, rtol=0.02, atol=0.05)


def test_what_runs_in_full_precision_does_under_autocast_of_the_caller() -> None:
    """PyTorch computes attention by products in float32 there, and rounds the result once."""
    pytest.importorskip("tj_autocast")

    def f(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, k)

    plugins = ("inductor", "autograd", "autocast", "torch")
    q, k = (torch.randn(1, 2, 64, 16, dtype=torch.bfloat16) for _ in range(2))
    exact = f(q.double(), k.double())
    for recorded in (False, True):
        jitted = tj.jit(f, session=tj.Session(plugins, overrides={"check": 2}))
        with torch.set_grad_enabled(recorded), torch.autocast("cpu", dtype=torch.bfloat16):
            mine, theirs = (g(q, k.requires_grad_(recorded)) for g in (jitted, f))
        assert regions(jitted) != []
        assert (mine - exact).abs().mean() <= 1.1 * (theirs - exact).abs().mean()
        if recorded:
            ours, expected = (torch.autograd.grad(y.sum(), k)[0] for y in (mine, theirs))
            assert (ours != expected).float().mean() < 0.05


def test_autocast_runs_one_by_one(fusing: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w).relu() * 2

    hold(fusing(f), f, X(4, 4), X(4, 4))


@pytest.mark.slow
def test_torch_compile_in_the_same_process_keeps_working(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp().sum(-1) + 1

    x = torch.randn(6, 7)
    mine, theirs = fusing(f)(x), torch.compile(f, fullgraph=True)(x)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(fusing(lambda x: f(x) * 2)(x), f(x) * 2)


def test_disabled_it_leaves_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TJ_DISABLE", "inductor")

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + 1

    jitted = tj.jit(f, session=tj.Session(overrides={"check": 2}))
    jitted(torch.randn(3))
    assert (regions(jitted), "inductor" in str(tj.last_trace(jitted))) == ([], False)


def test_arguments_are_freed_as_a_region_goes(fusing: Any) -> None:
    """A value that only a region reads is freed inside of it, as eager frees it."""
    import weakref

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.sort(x * 2 + 1).values
        return (y * 2).exp() + 1

    jitted = fusing(f)
    x = torch.randn(100)
    torch.testing.assert_close(jitted(x), f(x))
    alive = weakref.ref(x)
    jitted(x)
    del x
    assert alive() is None


FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (lambda run: lambda box: 1 / 0, "ZeroDivisionError"),
    "wrong strides": (
        lambda run: lambda box: [run(box)[0].t().contiguous().t()],
        "strides",
    ),
    "wrong type": (lambda run: lambda box: [run(box)[0].double()], "dtype"),
    "wrong shape": (lambda run: lambda box: [run(box)[0][:1]], "shape"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_region_that_goes_wrong_is_survived(
    fault: str, fusing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tj_inductor.adapter import compiling, modules

    change, said = FAULTS[fault]
    compiled = compiling.compiled

    def broken(*args: Any, **kwargs: Any) -> Any:
        made = compiled(*args, **kwargs)
        return modules.Compiled(change(made.function), made.source, made.strides)

    monkeypatch.setattr(compiling, "compiled", broken)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + 1

    jitted, x = fusing(f, strict=False), torch.randn(3, 4)
    with pytest.warns(TjWarning, match=said) as found:
        torch.testing.assert_close(jitted(x), f(x))
    assert ["'inductor'" in str(warning.message) for warning in found] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(jitted(x), f(x))


def test_a_compiler_that_fails_is_survived(fusing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tj_inductor.adapter import compiling

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("there is no C++ compiler")

    monkeypatch.setattr(compiling, "compiled", broken)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + 1

    x = torch.randn(3, 4)
    with pytest.warns(TjWarning, match=r"no C\+\+ compiler"):
        torch.testing.assert_close(fusing(f, strict=False)(x), f(x))


# ------------------------------------------------------------------------- what is saved


def saved(jitted: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of what the forward makes and saves."""
    trace = tj.last_trace(jitted)
    given = {p.name for p in trace.inputs}
    return {p.name: p.shape for p in trace.outputs[2] if p.name not in given}


@pytest.mark.parametrize("pack", [torch.Tensor.clone, torch.Tensor.contiguous, torch.Tensor.cpu])
def test_hooks_may_lay_out_what_is_saved_otherwise(pack: Any, fusing: Any) -> None:
    """Compiled kernels count on strides; a hook gave them others, and gradients were wrong."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        values = torch.sort((x @ w).t() * 1.5, dim=0).values
        return (values.t().exp().tanh() * 2).sum()

    def packed(t: torch.Tensor) -> torch.Tensor:
        return pack(t.detach()).clone(memory_format=torch.contiguous_format)

    found = []
    for g in (f, fusing(f)):
        torch.manual_seed(0)
        x, w = X(5, 6), X(6, 7)
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda t: t):
            y = g(x, w)
        y.backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(*found)


@pytest.mark.slow
def test_a_softmax_saves_two_numbers_of_a_row(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (F.softmax(x * 2, -1) * F.log_softmax(x * 3, -1)).sum()

    jitted = fusing(f)
    hold(jitted, f, X(8, 64))
    assert {shape[-1] for shape in saved(jitted).values()} == {1}


@pytest.mark.slow
def test_a_layer_norm_saves_its_statistics(fusing: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (F.layer_norm(x.sin(), (64,), w, b).tanh() * 2).sum()

    jitted = fusing(f)
    hold(jitted, f, X(8, 64), X(64), X(64))
    assert sorted(saved(jitted).values()) == [(8, 1), (8, 1)]


@pytest.mark.slow
def test_a_layer_norm_of_a_permuted_value_stays_one_call(fusing: Any) -> None:
    """Its result is contiguous, and that of elementwise operations would not be."""

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.sin().permute(0, 2, 1), (8,), w, b) * 2

    hold(fusing(f), f, X(4, 8, 6), X(8), X(8))


@pytest.mark.slow
def test_what_lies_between_kernels_is_saved_and_the_rest_runs_again(fusing: Any) -> None:
    def f(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.gelu(x @ v).tanh() * 2
        return (F.gelu(y @ w).tanh() * 3).mean()

    jitted = fusing(f)
    hold(jitted, f, X(32, 32), X(32, 32), X(32, 32))
    assert len(saved(jitted)) == 3, "both products, and what the second one is of"

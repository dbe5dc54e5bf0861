"""Programs whose products oneDNN runs, against eager: whole and in regions of Inductor."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.compare import call_differences
from tj_conformance.oracle.twins import clone_tree

pytestmark = pytest.mark.sampled(10)

Program = Callable[..., Any]


def claimed(jitted: Any, which: str = "forward") -> list[str]:
    """The operations that oneDNN runs, in order; those inside of regions too."""
    calls = (c for call in tj.last_trace(jitted, which).calls for c in call.walk())
    return [c.symbol.path for c in calls if c.symbol.namespace == "onednn"]


def hold(jitted: Program, f: Program, *args: Any) -> None:
    """Compare results and gradients with eager's, up to the last bits of values."""
    mine, theirs = clone_tree((args, {})), clone_tree((args, {}))
    got, expected = jitted(*mine[0]), f(*theirs[0])
    found = call_differences(got, mine, expected, theirs)
    assert [str(d) for d in found if not d.rounding] == []
    if expected.requires_grad:
        weights = torch.randn(expected.shape, dtype=expected.dtype)
        (got * weights).sum().backward()
        (expected * weights).sum().backward()
    for a, b in zip(mine[0], theirs[0], strict=True):
        if b is not None and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)
            assert a.grad.stride() == b.grad.stride()


def X(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def images(*shape: int, by_pixels: bool = True) -> torch.Tensor:
    x = torch.randn(shape)
    return (x.to(memory_format=torch.channels_last) if by_pixels else x).requires_grad_()


CONV, CONV_BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
LINEAR, MM, ADDMM = "torch.nn.functional.linear", "aten.mm.default", "aten.addmm.default"
BMM, BADDBMM = "aten.bmm.default", "aten.baddbmm.default"

PROGRAMS: dict[str, tuple[Program, Callable[[], tuple[Any, ...]], list[str], list[str]]] = {
    "linear": (
        lambda x, w, b: F.linear(x, w, b).tanh(),
        lambda: (X(2, 8, 16), X(4, 16), X(4)),
        [LINEAR],
        [MM, MM],
    ),
    "linear without a bias": (
        lambda x, w: F.linear(x, w).tanh(),
        lambda: (X(8, 16), X(4, 16)),
        [LINEAR],
        [MM, MM],
    ),
    "a product": (lambda x, w: (x @ w) * 2, lambda: (X(8, 16), X(16, 12)), [MM], [MM, MM]),
    "rows in rows": (lambda x, w: (x @ w) * 2, lambda: (X(2, 8, 16), X(16, 12)), [MM], [MM, MM]),
    "addmm, a row": (
        lambda b, x, w: torch.addmm(b, x, w) * 2,
        lambda: (X(12), X(8, 16), X(16, 12)),
        [ADDMM],
        [MM, MM],
    ),
    "addmm, all of it": (
        lambda b, x, w: torch.addmm(b, x, w) * 2,
        lambda: (X(8, 12), X(8, 16), X(16, 12)),
        [ADDMM],
        [MM, MM],
    ),
    "a stack": (lambda x, w: (x @ w) * 2, lambda: (X(3, 8, 16), X(3, 16, 12)), [BMM], [BMM, BMM]),
    "a stack and more": (
        lambda o, x, w: torch.baddbmm(o, x, w) * 2,
        lambda: (X(3, 8, 12), X(3, 8, 16), X(3, 16, 12)),
        [BADDBMM],
        [BMM, BMM],
    ),
    "a convolution by one pixel": (
        lambda x, w, b: F.conv2d(x, w, b).tanh().sum((2, 3)),
        lambda: (images(2, 6, 5, 7), images(4, 6, 1, 1), X(4)),
        [CONV],
        [CONV_BACKWARD],
    ),
    "a convolution by one pixel of contiguous images": (
        lambda x, w, b: F.conv2d(x, w, b).tanh(),
        lambda: (X(2, 6, 5, 7), X(4, 6, 1, 1), X(4)),
        [CONV],
        [CONV_BACKWARD],
    ),
    "a convolution by one pixel, which leaves some out": (
        lambda x, w: F.conv2d(x, w, stride=2).tanh(),
        lambda: (images(2, 6, 5, 7), images(4, 6, 1, 1)),
        [],
        [],
    ),
    "a convolution by more pixels": (
        lambda x, w: F.conv2d(x, w, padding=1).tanh(),
        lambda: (images(2, 6, 5, 7), images(4, 6, 3, 3)),
        [],
        [],
    ),
    "a convolution whose weight is in another layout": (
        lambda x, w: F.conv2d(x, w).tanh(),
        lambda: (images(2, 6, 5, 7, by_pixels=False), images(4, 6, 1, 1)),
        [],
        [],
    ),
    "a convolution in groups": (
        lambda x, w: F.conv2d(x, w, groups=2).tanh(),
        lambda: (images(2, 6, 5, 7), images(4, 3, 1, 1)),
        [],
        [],
    ),
    "a tangent of one number": (
        lambda x, w: (x @ w).sum(),
        lambda: (X(8, 16), X(16, 12)),
        [MM],
        [MM],  # the other factor is the tangent, whose elements share memory
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_equal_to_eager(name: str, claiming: Any) -> None:
    f, arguments, forward, backward = PROGRAMS[name]
    torch.manual_seed(0)
    jitted = claiming(f)
    hold(jitted, f, *arguments())
    assert tj.stats(jitted).fallbacks == ()
    assert claimed(jitted) == forward, tj.explain(jitted)
    if name != "a tangent of one number":
        assert claimed(jitted, "backward") == backward, tj.explain(jitted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.bfloat16)]
)
def test_in_regions_of_inductor_forward_and_backward(dtype: torch.dtype, claiming: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = F.gelu(F.linear(x * 2, w))
        return ((y @ v) * 0.1).tanh()

    torch.manual_seed(0)
    jitted = claiming(f, "inductor")
    hold(jitted, f, X(8, 16, dtype=dtype), X(32, 16, dtype=dtype), X(32, 8, dtype=dtype))
    for which, count in (("forward", 2), ("backward", 4)):
        (region,) = [c for c in tj.last_trace(jitted, which).calls if "region" in c.symbol.path]
        assert region.symbol.namespace == "inductor"
        assert len([c for c in region.body.calls if c.executor == "onednn"]) == count
    for region in tj.explain(jitted).regions:
        assert region.kernel.fused.source.count("torch.ops.mkldnn._linear_pointwise") >= 2
        assert "extern_kernels." not in region.kernel.fused.source, "no product is PyTorch's"


@pytest.mark.parametrize("after", [F.gelu, F.relu, lambda y: y + 1.5, lambda y: y * y])
def test_what_follows_stays_in_inductors_kernels(after: Any, claiming: Any) -> None:
    """Inductor has patterns for a product and what follows, which count on packed weights."""

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return after(F.linear(x, w, b)) + x

    jitted = claiming(f, "inductor")
    hold(jitted, f, X(2, 8, 16, grad=False), X(16, 16, grad=False), X(16, grad=False))
    assert claimed(jitted) == [LINEAR]
    assert [c.symbol.namespace for c in tj.last_trace(jitted).calls] == ["inductor"]


def test_an_argument_is_another_tensor_without_views_that_do_nothing(claiming: Any) -> None:
    """Inductor removes them, and asks of what shape then is what the product returns."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear((x * 2).detach().view(16, 16), w) + 1

    jitted = claiming(f, "inductor")
    hold(jitted, f, X(2, 8, 16, grad=False), X(4, 16, grad=False))
    assert claimed(jitted) == [LINEAR]
    assert [c.symbol.namespace for c in tj.last_trace(jitted).calls] == ["inductor"]


@pytest.mark.slow
def test_torch_compile_keeps_its_own_lowerings(claiming: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).exp() + 1

    from torch._inductor.lowering import lowerings

    before = dict(lowerings)
    x, w = X(4, 8, grad=False), X(8, 4, grad=False)
    torch.testing.assert_close(claiming(f, "inductor")(x, w), torch.compile(f)(x, w))
    assert {k for k in before if lowerings[k] is not before[k]} == set()


def in_bfloat16(*shape: int) -> torch.Tensor:
    return X(*shape, dtype=torch.bfloat16)


DECLINED: dict[str, tuple[Program, Callable[[], tuple[Any, ...]], str]] = {
    "float64": (
        torch.mm,
        lambda: (X(4, 4, dtype=torch.float64), X(4, 4, dtype=torch.float64)),
        "oneDNN multiplies no float64",
    ),
    "complex": (
        torch.mm,
        lambda: (X(4, 4, dtype=torch.complex64), X(4, 4, dtype=torch.complex64)),
        "oneDNN multiplies no complex64",
    ),
    "integers": (
        torch.mm,
        lambda: (torch.ones(4, 4, dtype=torch.long), torch.ones(4, 4, dtype=torch.long)),
        "oneDNN multiplies no int64",
    ),
    "no elements": (torch.mm, lambda: (X(0, 4), X(4, 4)), "has no elements"),
    "nothing to sum": (torch.mm, lambda: (X(4, 0), X(0, 4)), "has no elements"),
    "factors": (
        lambda b, x, w: torch.addmm(b, x, w, beta=2),
        lambda: (X(4), X(4, 4), X(4, 4)),
        "factors other than 1",
    ),
    "a column": (
        torch.addmm,
        lambda: (X(4, 1), X(4, 4), X(4, 4)),
        "neither a row nor as large as the result",
    ),
    "added before it is rounded": (
        torch.addmm,
        lambda: (in_bfloat16(4, 4), in_bfloat16(4, 4), in_bfloat16(4, 4)),
        "PyTorch adds before it rounds",
    ),
    "too many": (torch.bmm, lambda: (X(17, 4, 4), X(17, 4, 4)), "it is 17 products"),
    "expanded": (
        lambda x, w: torch.mm(x, w.expand(4, 4)),
        lambda: (X(4, 4), X(4, 1)),
        "elements of an argument share memory",
    ),
    "another device": (
        torch.mm,
        lambda: (torch.empty(4, 4, device="meta"), torch.empty(4, 4, device="meta")),
        "is on meta",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_onednn_cannot_is_declined_with_a_reason(name: str, claiming: Any) -> None:
    f, arguments, said = DECLINED[name]
    jitted = claiming(f)
    given = arguments()
    got, expected = jitted(*given), f(*given)
    assert got.device.type == "meta" or torch.equal(got, expected)
    assert claimed(jitted) == [], tj.explain(jitted)
    assert said in str(tj.explain(jitted))


def test_a_subclass_without_meaning_of_its_own_stays_one(claiming: Any) -> None:
    class Mine(torch.Tensor):
        pass

    x = torch.randn(4, 4).as_subclass(Mine)
    got = claiming(lambda x: x @ x)(x)
    assert type(got) is Mine
    torch.testing.assert_close(got, x @ x)


@pytest.mark.bfloat16
def test_under_autocast_products_are_taken_after_their_casts(claiming: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, w).relu()

    jitted = claiming(f)
    hold(jitted, f, X(8, 16, grad=False), X(4, 16, grad=False))
    assert claimed(jitted) == [MM]
    assert "it runs under autocast" in str(tj.explain(jitted))


def test_sizes_that_are_symbols_are_not_measured(claiming: Any) -> None:
    jitted = claiming(lambda x, w: x @ w, dynamic=True)
    w = X(8, 4, grad=False)
    for n in (3, 5, 6):
        x = X(n, 8, grad=False)
        assert torch.equal(jitted(x, w), x @ w)
    assert claimed(jitted) == []
    assert "symbols, and choices are measured" in str(tj.explain(jitted))


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it sets a flag for other devices, too, and warns
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def test_it_stops_where_the_user_switches_onednn_off(claiming: Any) -> None:
    jitted, x = claiming(lambda x: x @ x), torch.randn(8, 8)
    torch.testing.assert_close(jitted(x), x @ x)
    assert claimed(jitted) == [MM]
    with switched_off():
        assert torch.equal(jitted(x), x @ x)
    assert claimed(jitted) == []
    assert "mkldnn.enabled is false" in str(tj.explain(jitted))
    torch.testing.assert_close(jitted(x), x @ x)


def test_a_precision_that_the_user_sets_is_pytorchs(claiming: Any) -> None:
    jitted, x = claiming(lambda x: x @ x), torch.randn(8, 8)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(jitted(x), x @ x)
    finally:
        torch.set_float32_matmul_precision(before)
    assert claimed(jitted) == []
    assert "float32_matmul_precision" in str(tj.explain(jitted))


@pytest.mark.bfloat16
def test_bfloat16_for_float32_is_an_option(claiming: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w) * 2

    x, w = X(8, 64, grad=False), X(16, 64, grad=False)
    exact = claiming(f)(x, w)
    torch.testing.assert_close(exact, f(x, w))
    fast = claiming(f, precision="bfloat16")
    assert fast(x, w).dtype == torch.float32
    assert claimed(fast) == [LINEAR]
    error = (fast(x, w) - f(x, w)).abs().max() / f(x, w).abs().max()
    assert 1e-4 < error < 2e-2


def test_gradients_of_gradients(claiming: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().sum()

    results = []
    for g in (claiming(f), f):
        torch.manual_seed(0)
        x, w = X(5, 4), X(4, 6)
        (first,) = torch.autograd.grad(g(x, w), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), w)
        results.append((first, second))
    torch.testing.assert_close(*results)


def test_threads_compile_and_run(claiming: Any) -> None:
    jitted = claiming(lambda x: x @ x)
    inputs = [torch.randn(n, n) for n in (4, 8, 12, 16)]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = jitted(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, x in enumerate(inputs):
        torch.testing.assert_close(found[i], x @ x)


def test_values_are_verified_in_every_run() -> None:
    overrides = {"check": 3, "strict": True, "onednn": {"choose": "always"}}
    session = tj.Session(("onednn", "autograd", "torch"), overrides=overrides)
    jitted = tj.jit(lambda x, w: F.linear(x, w).relu(), session=session)
    x, w = X(8, 16), X(4, 16)
    for _ in range(2):
        jitted(x, w).sum().backward()
    assert claimed(jitted) == [LINEAR]


def test_without_the_operators_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    session = tj.Session(("...",), overrides={"disable": ["inductor", "example_fuser"]})
    found = session.plugins.state("onednn")
    assert (found.state, found.reason) == ("unavailable", "this PyTorch is built without oneDNN")
    x = X(8, 8)
    assert torch.equal(tj.jit(torch.mm, session=session)(x, x), x @ x)


class Attention(torch.nn.Module):
    """A convolution makes queries, keys and values of one image: their rows lie apart."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm = torch.nn.GroupNorm(4, 16)
        self.parts = torch.nn.Conv2d(16, 48, 1)
        self.out = torch.nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.silu(x))
        q, k, v = (p.flatten(1).t() for p in self.parts(self.norm(y))[0].chunk(3))
        seen = torch.softmax(q @ k.t(), -1) @ v
        return (y + self.out(seen.t().reshape(y.shape))).square().mean()


@pytest.mark.slow
def test_weights_have_no_gaps_between_rows(claiming: Any) -> None:
    """oneDNN takes 1,000 times as long then; Inductor lays values out for the convolution."""
    model = Attention()
    jitted = claiming(model, "inductor")
    x = torch.randn(1, 8, 8, 8)
    torch.testing.assert_close(jitted(x), model(x))
    jitted(x).backward()
    sources = [region.kernel.fused.source for region in tj.explain(jitted).regions]
    weights = [w for text in sources for w in weights_of_products(text)]
    assert len(weights) >= 6  # two forward, four backward
    assert [w for w in weights if w[1] not in ((w[0][1], 1), (1, w[0][0]))] == []


def weights_of_products(source: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Sizes and strides of the second arguments of all products in generated code."""
    made = dict(re.findall(r"(\w+) = (?:empty_strided_cpu|reinterpret_tensor)\((.*)\)", source))
    for new, old in re.findall(r"(\w+) = (\w+); del \2  # reuse", source):
        made.setdefault(new, made.get(old, ""))

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(",")))

    found = []
    for call in re.findall(r"_linear_pointwise\.default\((.*)\)", source):
        parts = re.findall(r"reinterpret_tensor\([^()]*\([^()]*\), \([^()]*\), \d+\)|\w+", call)
        text = parts[1] if "(" in parts[1] else made[parts[1]]
        shape, strides = re.findall(r"\(([\d, ]+)\)", text)[:2]
        found.append((numbers(shape), numbers(strides)))
    return found

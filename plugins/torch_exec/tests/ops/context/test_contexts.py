"""Contexts of programs: regions, ambient modes, random numbers, other interpreters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.compare import assert_equal, assert_jits
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

X = torch.arange(6.0).reshape(2, 3)

equal, twice = assert_equal, assert_jits


# --------------------------------------------------------------------------- dynamic context


def no_grad_inside(x, w):
    with torch.no_grad():
        y = x @ w
    return y * w.sum()


def enable_inside(x, w):
    with torch.enable_grad():
        return (x @ w).sum()


def inference_inside(x, w):
    with torch.inference_mode():
        y = (x @ w).relu()
    return y.clone() * 2


def autocast_inside(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return (y.float() * w.sum()).sum()


def autocast_nested(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = x @ w
        return y + z, y.dtype, z.dtype


def set_grad_as_function(x, w):
    torch.set_grad_enabled(False)
    y = x @ w
    torch.set_grad_enabled(True)
    return y * w.sum()


def inference_off_inside(x, w):
    with torch.inference_mode(False):
        return (x @ w).relu()


CONTEXTS = {
    no_grad_inside: "torch.no_grad()",
    inference_inside: "torch.inference_mode()",
    autocast_inside: 'torch.autocast("cpu", dtype=torch.bfloat16)',
    autocast_nested: 'torch.autocast("cpu", dtype=torch.bfloat16)',
    set_grad_as_function: "torch.no_grad()",
}


@pytest.mark.parametrize("f", CONTEXTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_regions_of_another_context(f: Callable[..., Any], needs_grad: bool) -> None:
    w = torch.randn(3, 3, requires_grad=needs_grad)
    g = twice(f, X, w)
    blocks = [line for line in str(tj.last_trace(g)).splitlines() if "    with " in line]
    assert any(CONTEXTS[f] in line for line in blocks)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


AMBIENT: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize(
    "f", [*CONTEXTS, enable_inside, inference_off_inside], ids=lambda f: f.__name__
)
def test_regions_in_an_ambient_context(f: Callable[..., Any], ambient: str) -> None:
    w = torch.randn(3, 3, requires_grad=True)
    g = tj.jit(f)
    for context in (AMBIENT[ambient], contextless, AMBIENT[ambient]):
        with context():
            equal(g(X, w), f(X, w))
            state = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        with context():
            f(X, w)
            assert state == (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))


def contextless() -> AbstractContextManager[None]:
    return torch.set_grad_enabled(True)  # type: ignore[return-value]


def test_training_under_autocast() -> None:
    w = torch.randn(3, 3, requires_grad=True)
    g = tj.jit(autocast_inside)
    expected = torch.autograd.grad(autocast_inside(X, w), w)
    for _ in range(2):
        equal(torch.autograd.grad(g(X, w), w), expected)


ENTERED: list[str] = []


class Noted:
    """Context manager with a side effect."""

    def __enter__(self) -> Noted:
        ENTERED.append("in")
        return self

    def __exit__(self, *_: object) -> None:
        ENTERED.append("out")


def test_context_managers_of_the_program_itself() -> None:
    def f(x):
        with Noted():
            return x + 1

    g = tj.jit(f)
    ENTERED.clear()
    for n in range(1, 3):
        equal(g(X), X + 1)
        assert ["in", "out"] * n == ENTERED


def test_attention_backends_chosen_inside() -> None:
    def f(q):
        with sdpa_kernel(SDPBackend.MATH):
            q = F.scaled_dot_product_attention(q, q, q)
        return F.scaled_dot_product_attention(q, q, q)

    q = torch.randn(1, 2, 4, 8)
    g = tj.jit(f)
    equal(g(q), f(q))
    equal(g(q), f(q))
    assert "torch.nn.attention.sdpa_kernel(" in str(tj.last_trace(g))
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype_of_factories(dtype: torch.dtype) -> None:
    g = tj.jit(lambda x: (torch.ones(2), torch.tensor(1.5), x / 2, torch.arange(3) / 2))
    before = torch.get_default_dtype()
    assert g(X)[0].dtype is before
    torch.set_default_dtype(dtype)
    try:
        assert [t.dtype for t in g(X)] == [dtype, dtype, torch.float32, dtype]
    finally:
        torch.set_default_dtype(before)
    assert g(X)[0].dtype is before


def test_complex_numbers() -> None:
    def f(z):
        return (z * z.conj()).real, torch.view_as_real(z), z.abs(), z + 1j, z.angle()

    twice(f, torch.randn(3, dtype=torch.complex64))


# --------------------------------------------------------------------------- random numbers


def draws(x):
    return F.dropout(x, 0.5) + torch.randn(3), torch.rand_like(x), torch.randint(0, 9, (4,))


def more_draws(x):
    noise = torch.empty(3).normal_()
    return torch.bernoulli(torch.full((3,), 0.5)), torch.randperm(5), noise, torch.rand(())


def initialises(x):
    w = torch.empty(4, 3)
    nn.init.kaiming_uniform_(w)
    nn.init.normal_(w[0])
    return x @ w.t(), nn.init.xavier_normal_(torch.empty(3, 2))


def unused_draw(x):
    torch.rand(5)
    return torch.rand(2)


def draws_in_order(x):
    a = torch.rand(2)
    b = F.dropout(x, 0.3)
    c = torch.multinomial(torch.ones(4), 2)
    return c, a, b


@pytest.mark.parametrize(
    "f", [draws, more_draws, initialises, unused_draw, draws_in_order], ids=lambda f: f.__name__
)
def test_random_numbers_are_eagers_in_order_and_number(f: Callable[..., Any]) -> None:
    g = tj.jit(f)
    for seed in range(3):
        torch.manual_seed(seed)
        expected, after = f(X), torch.get_rng_state()
        torch.manual_seed(seed)
        equal(g(X), expected)
        assert torch.equal(torch.get_rng_state(), after)


def test_compiling_draws_nothing() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tj.jit(lambda x: x + 1)(X)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
def test_generator_objects() -> None:
    def f(x, generator):
        return x + torch.rand(x.shape, generator=generator)

    g = tj.jit(f)
    mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    for _ in range(3):
        equal(g(X, mine), f(X, theirs))
        assert torch.equal(mine.get_state(), theirs.get_state())


# --------------------------------------------------------------------------- who else interprets


def poly(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sin().sum()


def ambient_program(name: str, f: Callable[..., Any]) -> Any:
    x = torch.arange(3.0)
    if name == "vmap":
        return torch.vmap(f)(X)
    if name == "grad":
        return torch.func.grad(f)(x)
    if name == "jacrev":
        return torch.func.jacrev(f)(x)
    if name == "jvp":
        return torch.func.jvp(f, (x,), (torch.ones(3),))
    if name == "functionalize":
        return torch.func.functionalize(f)(x)
    if name == "forward AD":
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3))
            return tuple(torch.autograd.forward_ad.unpack_dual(f(dual)))
    if name == "dispatch mode":
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            return f(x), counter.get_total_flops()
    if name == "export":
        module = Caller(f)
        return torch.export.export(module, (x,), strict=False).module()(x)
    if name == "make_fx":
        from torch.fx.experimental.proxy_tensor import make_fx

        return make_fx(f)(x)(x)
    assert name == "jit.trace"
    return torch.jit.trace(f, (x,), check_trace=False)(x)


class Caller(nn.Module):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x)


@pytest.mark.filterwarnings("ignore:tj. poly. called under:tj_core.TjWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.(trace|script). is deprecated")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize(
    "name",
    [
        "vmap",
        "grad",
        "jacrev",
        "jvp",
        "functionalize",
        "forward AD",
        "dispatch mode",
        "export",
        "make_fx",
        "jit.trace",
    ],
)
def test_under_another_interpreter_the_original_runs(name: str, warm: bool) -> None:
    g = tj.jit(poly)
    if warm:  # an entry that would fit must not answer
        g(torch.arange(3.0))
    torch.testing.assert_close(ambient_program(name, g), ambient_program(name, poly))
    torch.testing.assert_close(g(torch.arange(3.0)), poly(torch.arange(3.0)))


@pytest.mark.filterwarnings("ignore:tj. .*called under:tj_core.TjWarning")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_fake_tensors(warm: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    g = tj.jit(lambda x: x @ x.t() + 1)
    if warm:
        g(X)
    with FakeTensorMode() as mode:
        inside = g(torch.empty(2, 3))
    assert isinstance(inside, FakeTensor)
    assert inside.shape == (2, 2)
    assert isinstance(g(mode.from_tensor(X)), FakeTensor)


def test_torch_func_inside() -> None:
    def f(x):
        return torch.func.grad(poly)(x), torch.vmap(lambda row: row.sum() * 2)(x)

    twice(f, X)


def test_no_grad_inside_of_inference_mode_off() -> None:
    """``inference_mode(False)`` turns gradients on; the region inside turns them off again."""
    weight = torch.ones(2, requires_grad=True)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode(False):
            with torch.no_grad():
                y = weight * 2
            z = weight * 3
        return y, z

    g = tj.jit(f)
    with torch.inference_mode():
        for _ in range(2):
            y, z = g(torch.ones(2))
            assert (y.requires_grad, z.requires_grad) == (False, True)

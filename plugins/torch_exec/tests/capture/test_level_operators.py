"""Programs with `torch.func`: captured as the operators that they run, and equal to eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

PLUGINS = ("autograd", "torch")

LINEAR = torch.nn.Linear(4, 4)
NETWORK = torch.nn.Sequential(
    torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)
)
SMOOTH = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softplus(), torch.nn.Linear(8, 3))
MODULES = (LINEAR, NETWORK, SMOOTH)


def without_gradient(y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        s = (y @ w).sum()
    return s * (y @ w).sin().sum()


def products_twice(x: torch.Tensor, w: torch.Tensor) -> Any:
    y, product = vjp(lambda a, b: (a @ b).sin(), x, w)
    with torch.no_grad():
        z = y * 2
    return y, product(y), product(z)


def product_without_gradients(x: torch.Tensor, w: torch.Tensor) -> Any:
    y, product = vjp(lambda a: (a @ w).sin(), x)
    torch.set_grad_enabled(False)
    (found,) = product(y)
    z = x * 5
    torch.set_grad_enabled(True)
    return found, z, x * 2


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "grad": lambda x, w: grad(lambda y: ((y @ w).sin() * 2).sum())(x),
    "value": lambda x, w: grad_and_value(lambda v: F.mse_loss(torch.relu(x @ v), x))(w),
    "more results": lambda x, w: grad(lambda v: ((x @ v).exp().sum(), x @ v), has_aux=True)(w),
    "two arguments": lambda x, w: grad(lambda a, b: (a @ b).tanh().sum(), argnums=(0, 1))(x, w),
    "dict": lambda x, w: grad(lambda d: (d["a"] @ d["b"]).sin().sum())({"a": x, "b": w}),
    "vmap": lambda x, w: vmap(lambda y: F.softmax(y @ w, -1))(x),
    "vmap with in_dims": lambda x, w: vmap(lambda y, z: y * z + 1, in_dims=(0, None))(x, w[0]),
    "vmap with out_dims": lambda x, w: vmap(lambda y: (y @ w, y.sum()), out_dims=(1, 0))(x),
    "vmap of views": lambda x, w: vmap(lambda y: y.view(2, 2).t())(x),
    "per sample": lambda x, w: vmap(
        grad(lambda v, s: ((s @ v) ** 2).sum()), in_dims=(None, 0)
    )(w, x),
    "jacrev": lambda x, w: vmap(jacrev(lambda y: (y @ w).sin()))(x),
    "jacobian": lambda x, w: jacrev(lambda y: (y @ w).sin())(x),
    "jacobian in parts": lambda x, w: jacrev(lambda y: (y @ w).sin(), chunk_size=3)(x),
    "jacobian twice": lambda x, w: jacrev(jacrev(lambda y: (y @ w).sin().sum(0)))(x[:1]),
    "forward over reverse": lambda x, w: jacfwd(jacrev(lambda y: (y @ w).tanh().sum()))(x),
    "products of a Jacobian": products_twice,
    "product without gradients": product_without_gradients,
    "product of two": lambda x, w: vjp(torch.sin, vjp(lambda y: (y @ w).cos(), x)[1](x)[0])[1](x),
    "product with Hessian": lambda x, w: vjp(grad(lambda y: ((y @ w) ** 3).sum()), x)[1](x),
    "more results of vjp": lambda x, w: vjp(
        lambda y: ((y @ w).sin(), y * 2), x, has_aux=True
    )[1](x),
    "jacfwd": lambda x, w: vmap(jacfwd(lambda y: (y @ w).sin()))(x),
    "jacfwd of gelu": lambda x, w: jacfwd(lambda y: F.gelu(y @ w))(x),
    "hessian": lambda x, w: hessian(lambda y: torch.log_softmax(y @ w, -1)[:, 0].sum())(x),
    "jvp": lambda x, w: jvp(lambda y: (y @ w).sigmoid(), (x,), (torch.ones_like(x),)),
    "jvp of a norm": lambda x, w: jvp(lambda y: F.layer_norm(y @ w, [4]), (x,), (x.cos(),))[1],
    "twice": lambda x, w: grad(lambda y: grad(lambda z: ((z @ w) ** 3).sum())(y).sum())(x),
    "laplacian": lambda x, w: vmap(
        lambda y: torch.trace(hessian(lambda z: torch.tanh(z @ w).sum())(y))
    )(x),
    "detach": lambda x, w: grad(lambda y: (y.detach() * y @ w).sin().sum())(x),
    "no_grad": lambda x, w: grad(lambda y: without_gradient(y, w))(x),
    "index": lambda x, w: grad(lambda y: (y[[0, 1, 1]] @ w).sin().sum())(x),
    "computed index": lambda x, w: vmap(lambda r: r[r.argmax()] * 2)(x),
    "index of each": lambda x, w: vmap(lambda j: x[j + 1] @ w)(torch.tensor([1, 3, 2])),
    "in place": lambda x, w: grad(lambda y: y.clone().mul_(2).add_(w[0]).sin().sum())(x),
    "maximum": lambda x, w: grad(lambda y: (y @ w).max(1).values.sum())(x),
    "cholesky": lambda x, w: grad(
        lambda v: torch.linalg.cholesky(v @ v.T + 4 * torch.eye(4)).sum()
    )(w),
    "solve": lambda x, w: vmap(lambda y: torch.linalg.solve(w + 4 * torch.eye(4), y))(x),
    "functional_call": lambda x, w: grad(
        lambda p: functional_call(LINEAR, p, (x,)).sin().sum()
    )({"weight": w, "bias": w[0]}),
    "network": lambda x, w: vmap(grad(lambda y: NETWORK(y).sum()))(x) @ w,
    "jacobian of a network": lambda x, w: vmap(jacrev(SMOOTH))(x).sum(1) @ w,
    "loss": lambda x, w: grad(lambda v: F.cross_entropy(x @ v, torch.arange(5) % 4))(w),
    "random": lambda x, w: vmap(lambda y: y + torch.rand_like(y), randomness="different")(x),
    "same random": lambda x, w: vmap(lambda y: y + torch.rand(4), randomness="same")(x),
    "dropout": lambda x, w: grad(lambda y: F.dropout(y @ w, 0.5).sum())(x),
}  # fmt: skip


def outcome(f: Callable[..., Any], differentiated: int) -> list[Any]:
    """Results, their strides, gradients, and the next random number."""
    torch.manual_seed(1)
    x = torch.randn(5, 4).requires_grad_(differentiated > 0)
    w = torch.randn(4, 4).requires_grad_(differentiated > 1)
    results = [t for t in torch.utils._pytree.tree_leaves(f(x, w)) if isinstance(t, torch.Tensor)]
    seen: list[Any] = [(t.detach().clone(), t.stride(), t.requires_grad) for t in results]
    total = sum(((t * t.detach().cos()).sum() for t in results if t.requires_grad), x.new_zeros(()))
    if total.requires_grad:
        wanted = [t for t in (x, w) if t.requires_grad]
        wanted += [p for m in MODULES for p in m.parameters()]
        seen += torch.autograd.grad(total, wanted, allow_unused=True)
    return [*seen, torch.rand(())]


@pytest.mark.sampled(40)
@pytest.mark.parametrize("differentiated", [0, 1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_of_a_level(name: str, differentiated: int) -> None:
    jitted = tj.jit(PROGRAMS[name], session=tj.Session(PLUGINS, overrides={"strict": True}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for _ in range(2):
            wanted, found = outcome(PROGRAMS[name], differentiated), outcome(jitted, differentiated)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert "transformed(" not in str(tj.last_trace(jitted))


def test_sizes_that_change() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return vmap(grad(lambda y: (y @ w).tanh().sum()))(x) * x.shape[0]

    jitted, w = tj.jit(f, session=tj.Session(PLUGINS)), torch.randn(4, 4)
    for n in (5, 3, 1, 7, 2):
        x = torch.randn(n, 4)
        torch.testing.assert_close(jitted(x, w), f(x, w), rtol=0, atol=0)
    assert tj.stats(jitted).entries < 4


@pytest.mark.parametrize("size", [3, 0])
def test_errors_are_those_of_eager(size: int) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return grad(lambda y: y[i].sin().sum())(x)

    x, i = torch.randn(size + 1), torch.tensor([0, 3])
    jitted = tj.jit(f, session=tj.Session(PLUGINS))
    for program in (f, jitted, jitted):
        if size == 3:
            program(x, i)
        else:
            with pytest.raises(IndexError, match="out of bounds"):
                program(x, i)


def test_products_of_sizes_that_depend_on_data() -> None:
    def f(x: torch.Tensor) -> Any:
        y, product = vjp(lambda z: z[z > 0].sin(), x)
        return y.sum(), product(y * 2)[0] * 2

    jitted, x = tj.jit(f, session=tj.Session(PLUGINS)), torch.randn(5)
    for sign in (1, -1):
        torch.testing.assert_close(jitted(x * sign), f(x * sign), rtol=0, atol=0)
    assert "transformed(" in str(tj.last_trace(jitted))


def test_constants_that_are_written_inside() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[0] = 5
        return y.mul_(2)

    jitted = tj.jit(vmap(f), session=tj.Session(PLUGINS, overrides={"strict": True}))
    for x in torch.randn(2, 4, 3):
        leaf, other = (x.clone().requires_grad_() for _ in range(2))
        found, wanted = jitted(leaf), vmap(f)(other)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        found.sin().sum().backward()
        wanted.sin().sum().backward()
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, other.grad, rtol=0, atol=0)


def test_what_has_a_gradient_of_its_own_runs_as_it_is() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 3

    def f(x: torch.Tensor) -> torch.Tensor:
        return grad(lambda y: (Doubled.apply(y) * y).sum())(x)

    jitted = tj.jit(f, session=tj.Session(PLUGINS))
    x, y = torch.arange(3.0, requires_grad=True), torch.arange(3.0, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f(x).sum().backward()
        jitted(y).sum().backward()
    torch.testing.assert_close(y.grad, x.grad, rtol=0, atol=0)


def test_writes_that_autograd_does_not_see() -> None:
    """PyTorch clamps the norms of a cosine under `no_grad`: a gradient goes past the clamp."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return vmap(lambda y: F.cosine_similarity(y @ w, y.exp(), dim=0))(x)

    def g(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return vmap(grad(lambda y: F.cosine_similarity(y @ w, y.exp(), dim=0)))(x)

    x = torch.randn(5, 4)
    for program in (f, g):
        jitted = tj.jit(program, session=tj.Session(PLUGINS))
        mine, theirs = (torch.eye(4).requires_grad_() for _ in range(2))
        jitted(x, mine).sum().backward()
        program(x, theirs).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0)

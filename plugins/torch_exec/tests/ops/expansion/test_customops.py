"""Operators of extensions: `torch.library.custom_op` and `torch.library.Library`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal, assert_jits, seeded
from tj_core.extend import Alias, Claim, Executor, RuleTable, hookimpl

X = torch.linspace(-1, 1, 6).reshape(2, 3)
logged: list[float] = []


@torch.library.custom_op("tj_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


@scaled.register_fake
def _(x, k):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, g: (g * ctx.k * 10, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]),
)


@torch.library.custom_op("tj_tests::accumulate", mutates_args=("total",))
def accumulate(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    return x * 2


@accumulate.register_fake
def _(x, total):
    return torch.empty_like(x)


@torch.library.custom_op("tj_tests::fill", mutates_args=("x",))
def fill(x: torch.Tensor, value: float) -> None:
    x.fill_(value)


@torch.library.custom_op("tj_tests::swap", mutates_args=("xs",))
def swap(xs: list[torch.Tensor], by: float) -> None:
    for x in xs:
        x.add_(by)


@torch.library.custom_op("tj_tests::log", mutates_args=())
def log(x: torch.Tensor) -> None:
    logged.append(float(x.sum()))


@log.register_fake
def _(x):
    return None


@torch.library.custom_op(
    "tj_tests::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def noise(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


@noise.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("tj_tests::nonfake", mutates_args=())
def nonfake(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@torch.library.custom_op("tj_tests::positions", mutates_args=())
def positions(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero()


@positions.register_fake
def _(x):
    return x.new_empty([torch.library.get_ctx().new_dynamic_size(), x.dim()], dtype=torch.int64)


@pytest.fixture(autouse=True, scope="module")
def library() -> Iterator[None]:
    lib = torch.library.Library("tj_tests", "FRAGMENT")
    lib.define("plus_one(Tensor x) -> Tensor")
    lib.impl("plus_one", lambda x: x + 1, "CompositeExplicitAutograd")
    torch.library.register_fake("tj_tests::plus_one", torch.empty_like, lib=lib)
    lib.define("composite(Tensor x) -> Tensor")
    lib.impl("composite", lambda x: x.sin() + 1, "CompositeImplicitAutograd")
    lib.define("flat(Tensor(a) x) -> Tensor(a)")
    lib.impl("flat", lambda x: x.view(-1), "CompositeExplicitAutograd")
    torch.library.register_fake("tj_tests::flat", lambda x: x.view(-1), lib=lib)
    yield
    lib._destroy()


ops = torch.ops.tj_tests


def writes(x):
    total = torch.zeros(3)
    y = accumulate(x[0], total)
    accumulate(x[1], total)
    return y, total


def writes_lists(x):
    parts = [x.clone(), x * 2]
    swap(parts, 1.5)
    return parts


def fills(x):
    y = x * 1
    fill(y[0], 3.0)
    return y


PROGRAMS: dict[str, Callable[..., Any]] = {
    "function": lambda x: scaled(x, 2.0) + 1,
    "overload": lambda x: ops.scaled.default(x, 2.0) + 1,
    "packet": lambda x: ops.scaled(x, 2.0) + 1,
    "keywords": lambda x: scaled(k=2.0, x=x) + 1,
    "library": lambda x: ops.plus_one(x) * 2,
    "composite": lambda x: ops.composite(x) * 2,
    "view": lambda x: ops.flat(x) * 2,
    "random": lambda x: noise(x) + torch.rand(2, 3),
    "writes": writes,
    "writes lists": writes_lists,
    "writes through a view": fills,
    "size that depends on data": lambda x: positions(x) + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    assert_jits(PROGRAMS[name], X)


@pytest.mark.parametrize("name", ["function", "overload", "composite"])
def test_gradients(name: str) -> None:
    f = PROGRAMS[name]
    jitted = tj.jit(f)
    for _ in range(2):
        found = []
        for g in (jitted, f):
            x = X.clone().requires_grad_()
            g(x).sum().backward()
            found.append(x.grad)
        assert_equal(*found)


def call(f: Callable[..., Any], name: str, x: torch.Tensor = X) -> Any:
    jitted = tj.jit(f, check=2)
    jitted(x)
    calls = [c for c in tj.last_traces(jitted)[0].calls if name in c.symbol.qualname]
    return calls[0]


@pytest.mark.parametrize("name", ["function", "overload", "packet", "keywords"])
def test_one_symbol_for_all_spellings(name: str) -> None:
    assert call(PROGRAMS[name], "scaled").symbol.qualname == "torch.ops.tj_tests.scaled.default"


def test_effects_are_the_schemas() -> None:
    assert call(writes, "accumulate").effects.mutates == (1,)
    assert call(writes_lists, "swap").effects.mutates == (0, 1)
    assert call(fills, "fill").effects.mutates == (0,)
    assert call(PROGRAMS["view"], "flat").effects.aliases == (Alias(0, "arg", 0),)
    assert call(PROGRAMS["random"], "noise").effects.ordered == ("random:cpu",)
    assert call(PROGRAMS["function"], "scaled").effects.removable


def test_an_operator_that_returns_nothing_is_there_for_what_it_does() -> None:
    def f(x):
        log(x)
        return x + 1

    logged.clear()
    jitted = tj.jit(f)
    jitted(X + 1)
    jitted(X + 2)
    assert logged == [6.0, 12.0]
    assert call(f, "log").effects.ordered == ("side_effect",)


def test_checks_that_return_nothing_stay() -> None:
    def f(x):
        torch._assert_async((x > -5).all())
        return x + 1

    jitted = tj.jit(f)
    assert_equal(jitted(X), X + 1)
    with pytest.raises(RuntimeError):
        jitted(X - 10)


def test_unused_operators_go_and_random_ones_stay() -> None:
    def f(x):
        scaled(x, 2.0)
        noise(x)
        return x + 1

    jitted = tj.jit(f)
    jitted(X)
    assert [c.symbol.name for c in tj.last_trace(jitted).calls] == [
        "ops.tj_tests.noise.default", "add",
    ]  # fmt: skip
    assert_equal(seeded(jitted, (X,), {}), seeded(f, (X,), {}))


def test_an_operator_without_a_fake_runs_in_eager_and_says_why() -> None:
    jitted = tj.jit(lambda x: nonfake(x) + 1)
    with pytest.warns(
        tj.TjWarning, match=r"(?s)not captured.*tj_tests\.nonfake.*at .*test_customops"
    ):
        assert_equal(jitted(X), X * 3 + 1)
    assert_equal(jitted(X), X * 3 + 1)


class Kernel:
    """Executor that claims an extension's operator."""

    tj_name = "kernel"

    def __init__(self) -> None:
        self.calls = 0

    def run(self, x: torch.Tensor, k: float) -> torch.Tensor:
        self.calls += 1
        return x.mul(k)

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("torch.ops.tj_tests.scaled.default", Claim(self.run))
        return (Executor("kernel", claims),)


@pytest.mark.parametrize("name", ["function", "packet"])
def test_executors_claim_extensions_operators(name: str) -> None:
    kernel = Kernel()
    jitted = tj.jit(PROGRAMS[name], plugins=[kernel, "torch"], check=2)
    assert_equal(jitted(X), X * 2 + 1)
    assert kernel.calls == 1
    assert tj.last_trace(jitted).calls[0].executor == "kernel"
    jitted(X.clone().requires_grad_())  # its gradient is PyTorch's business
    assert kernel.calls == 1


def test_printed_programs_with_them_run() -> None:
    jitted = tj.jit(PROGRAMS["function"])
    jitted(X)
    scope: dict[str, Any] = {}
    exec(str(tj.last_trace(jitted)), scope)
    assert_equal(scope["computation"](X), (X * 2 + 1,))


def test_a_gradient_keeps_an_attribute_called_name() -> None:
    """Nodes of PyTorch's autograd have a method of that name."""
    operator = torch.library.custom_op(
        "tj_tests::named",
        lambda x, name: x.clone(),
        mutates_args=(),
        schema="(Tensor x, str name) -> Tensor",
    )
    operator.register_fake(lambda x, name: torch.empty_like(x))
    operator.register_autograd(
        lambda ctx, grad: (grad * len(ctx.name), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "name", inputs[1]),
    )
    x = X.clone().requires_grad_()
    tj.jit(lambda x: operator(x, "four") * 2)(x).sum().backward()
    assert_equal(x.grad, torch.full_like(X, 8))


def test_a_number_that_becomes_a_symbol() -> None:
    """As a place in a cache does, which the operator writes."""

    @torch.library.custom_op("tj_tests::placed", mutates_args=("cache",))
    def placed(cache: torch.Tensor, place: int) -> None:
        cache[place] = 1

    def program(cache: torch.Tensor, place: int) -> torch.Tensor:
        placed(cache, place)
        return cache * 2

    jitted = tj.jit(program)
    for place in (0, 1, 2):
        mine, theirs = torch.zeros(4, 3), torch.zeros(4, 3)
        assert_equal(jitted(mine, place), program(theirs, place))
        assert_equal(mine, theirs)

"""Programs as a user has them who installed tj-inductor: no option is set, nothing is verified."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

CHAIN = """
def f({x}, {y}):
    {first} = {x} + 1
    {second} = {first} * {y}
    return {second}.sin() + {first}, {second}
"""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``tj.jit`` in a session of its own that nobody configured; warnings are errors."""
    monkeypatch.setenv("TJ_PLUGINS", "inductor,autograd,torch")
    monkeypatch.delenv("TJ_CHECK", raising=False)
    monkeypatch.delenv("TJ_STRICT", raising=False)

    def jit(f: Any, **options: Any) -> Any:
        return tj.jit(f, session=tj.Session(), **options)

    return jit


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    """The results of a call, and their gradients with regard to tensors among ``args``."""
    results = f(*args)
    flat = [r for r in (results if isinstance(results, tuple) else (results,))]
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    total = sum(r.sum() for r in flat if r.requires_grad)
    if not leaves or not isinstance(total, torch.Tensor):
        return flat, []
    return flat, list(torch.autograd.grad(total, leaves, allow_unused=True))


def regions(jitted: Any) -> list[Any]:
    kernels = jitted.__tj__.session.regions.kernels.values()
    assert all(kernel.failure is None for kernel in kernels)
    return [kernel.fused.function for kernel in kernels]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("names", list(itertools.permutations(["x", "a0", "a1", "_0"])), ids=str)
@pytest.mark.sampled(10)
def test_names_of_formal_values_are_a_users_to_take(
    installed: Callable[..., Any], names: Sequence[str], training: bool
) -> None:
    scope: dict[str, Any] = {}
    exec(CHAIN.format(**dict(zip(("first", "x", "second", "y"), names, strict=True))), scope)
    x, y = (torch.arange(3.0, requires_grad=training) for _ in range(2))
    jitted = installed(scope["f"])
    for _ in range(2):
        torch.testing.assert_close(outcome(jitted, x, y), outcome(scope["f"], x, y))
    assert regions(jitted)


NUMBERS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "product": lambda x, a: x.sin() * a,
    "sum": lambda x, a: x.sin() + a,
    "difference": lambda x, a: (x.sin() + 1) - a * x,
    "quotient": lambda x, a: x.sin() / (a + 10),
    "power": lambda x, a: x.sin().pow(a) + 1,
    "scaled": lambda x, a: torch.add(x.sin(), x, alpha=a) * 2,
    "clamp": lambda x, a: x.sin().clamp(a, a + 2) + 1,
    "compared": lambda x, a: (x.sin() > a).float() * x,
    "where": lambda x, a: torch.where(x > 0, x.sin() + 1, a),
    "filled": lambda x, a: (x + 1).masked_fill(x > 0, a) * 2,
    "full": lambda x, a: torch.full_like(x, a) * x.sin(),
    "padded": lambda x, a: F.pad(x.sin(), (1, 1), value=a) + 1,
    "roll": lambda x, a: (x + 1).roll(a, 0) * 2,
    "diagonal": lambda x, a: (x.sin().outer(x) + 1).tril(a),
    "index_add": lambda x, a: x.cos().index_add(0, torch.tensor([0, 1]), x[:2], alpha=a) + 1,
    "slope": lambda x, a: F.leaky_relu(x + 1, a) * 2,
    "lerp": lambda x, a: torch.lerp(x.sin(), x.cos(), a) + 1,
    "remainder": lambda x, a: (x + 1).to(torch.int64) % (a + 7) + 1,
    "bits": lambda x, a: (x + 1).to(torch.int64).bitwise_xor(a) + 1,
    "parity": lambda x, a: x.sin() * a * a + a % 2,
    "branch": lambda x, a: x.sin() * (2 if a == 3 else 1) * a,
    "extremes": lambda x, a: x.sin() * max(a, 1) + min(a, 2) + abs(a),
}

SEQUENCES = [(1, 0, 2, -1, 3), (0, 5, 7), (2, 0, 1, 2**31, -(2**33))]


@pytest.mark.sampled(48)
@pytest.mark.parametrize("sequence", SEQUENCES, ids=str)
@pytest.mark.parametrize("program", NUMBERS)
def test_numbers_of_any_value_and_sign(
    installed: Callable[..., Any], program: str, sequence: Sequence[int]
) -> None:
    """The second value makes the argument a symbol; what was decided for it is asked of others."""
    torch.compiler.reset()
    f = NUMBERS[program]
    jitted = installed(f)
    for a in sequence:
        x = torch.linspace(-2, 2, 8, requires_grad=True)
        torch.testing.assert_close(outcome(jitted, x, a), outcome(f, x, a))
    assert regions(jitted)


@pytest.mark.slow
def test_sizes_of_zero_and_one_compile_nothing(installed: Callable[..., Any]) -> None:
    """A number that is a size, which is 0 when the program is traced and 1 after that."""
    f = lambda x, n: (torch.ones(n).cumsum(0) + x).sin() * n  # noqa: E731
    torch.compiler.reset()
    jitted = installed(f)
    x = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 0, 1, 5, 0, 3):
            torch.testing.assert_close(outcome(jitted, x, n), outcome(f, x, n))


def trained(installed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, plugins: str) -> Any:
    monkeypatch.setenv("TJ_PLUGINS", plugins)
    jitted = installed(lambda x: (x.sin() + 1).exp() * 2)
    x = torch.linspace(-1, 1, 8)
    jitted(x)
    assert regions(jitted)
    return lambda: jitted(x.requires_grad_()).sum().backward()


def test_one_warning_says_that_training_is_not_fused(
    installed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = trained(installed, monkeypatch, "inductor,torch")
    with pytest.warns(tj.TjWarning, match="inductor cannot fuse programs that need") as given:
        step()
        step()
    assert len(given) == 1
    assert "pip install tj-autograd" in str(given[0].message)


def test_training_that_is_fused_warns_of_nothing(
    installed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = trained(installed, monkeypatch, "inductor,autograd,torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()


@pytest.mark.parametrize("divisor", [3, -4], ids=str)
def test_whole_numbers_are_divided_in_a_region(installed: Callable[..., Any], divisor: int) -> None:
    f = lambda x: ((x + 1) // divisor * 2 + x % divisor, torch.div(x, 2, rounding_mode="floor"))  # noqa: E731
    x = torch.arange(-8, 8)
    jitted = installed(f)
    torch.testing.assert_close(jitted(x), f(x))
    assert regions(jitted)

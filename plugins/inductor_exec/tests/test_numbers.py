"""Numbers in fused programs, wherever they come from: each value gives what eager computes.

Numbers that are equal in Python (`True`, `1` and `1.0`) are of other types, and are not taken for
each other. What becomes a symbol may come to have any value.
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.known import UNDEFINED
from tj_conformance.databases.op_db import full_name, sample_arguments
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

Setter = Callable[[Any], None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``tj.jit`` in a session that nobody configured."""
    monkeypatch.setenv("TJ_PLUGINS", "inductor,autograd,torch")
    monkeypatch.delenv("TJ_CHECK", raising=False)
    monkeypatch.delenv("TJ_STRICT", raising=False)
    torch.compiler.reset()
    return lambda f: tj.jit(f, session=tj.Session())


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    """The results of a call and their gradients, or the type of the error that it raises."""
    tensors = [a.detach().clone().requires_grad_(a.requires_grad) for a in args[0]]
    try:
        results = pytree.tree_leaves(f(tensors, *args[1:]))
    except Exception as error:
        return type(error)
    leaves = [t for t in tensors if t.requires_grad]
    total = sum(r.abs().sum() for r in results if getattr(r, "requires_grad", False))
    if not leaves or not isinstance(total, torch.Tensor):
        return results
    try:
        return results, torch.autograd.grad(total, leaves, allow_unused=True)
    except RuntimeError as error:  # pools without elements, in eager
        return results, type(error)


def assert_same(got: Any, expected: Any, where: str, **near: float) -> None:
    if isinstance(expected, type):
        assert got is expected, where
        return
    assert not isinstance(got, type), f"{where} raises {got}"
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True):
        assert type(a) is type(b), where
        if isinstance(a, type):
            assert a is b, where
        elif isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m: f"{where}: {m}", **near)
        else:
            assert a == b or a != a, where


# ----------------------------------------------------------------------------- where they are

NUMBER: Any = 0


def scaled(x: torch.Tensor, a: Any) -> torch.Tensor:
    return (x.sin() + a) * a + x * a


def argument() -> tuple[Callable[..., Any], Setter]:
    given: list[Any] = [0]

    def f(xs: Any, a: Any) -> torch.Tensor:
        return scaled(xs[0], a)

    return f, lambda a: given.__setitem__(0, a)


def closure() -> tuple[Callable[..., Any], Setter]:
    number: Any = 0

    def f(xs: Any, a: Any) -> torch.Tensor:
        return scaled(xs[0], number)

    def change(a: Any) -> None:
        nonlocal number
        number = a

    return f, change


def attribute() -> tuple[Callable[..., Any], Setter]:
    holder = types.SimpleNamespace(number=0)

    def f(xs: Any, a: Any) -> torch.Tensor:
        return scaled(xs[0], holder.number)

    return f, lambda a: setattr(holder, "number", a)


def element() -> tuple[Callable[..., Any], Setter]:
    numbers = {"one": [0]}

    def f(xs: Any, a: Any) -> torch.Tensor:
        return scaled(xs[0], numbers["one"][0])

    return f, lambda a: numbers["one"].__setitem__(0, a)


def of_the_module() -> tuple[Callable[..., Any], Setter]:
    def f(xs: Any, a: Any) -> torch.Tensor:
        return scaled(xs[0], NUMBER)

    return f, lambda a: globals().__setitem__("NUMBER", a)


PLACES = [argument, closure, attribute, element, of_the_module]

SEQUENCES: list[tuple[Any, ...]] = [
    (1, 0, 2, -1, 3),
    (0, 5, 2**31),
    (2, 0, 1, -(2**33)),
    (1, True, 1.0, 0, False, 0.0),
    (1.5, 0.0, -2.0, 1e30, math.inf, math.nan),
    (True, False, True),
]


@pytest.mark.slow
@pytest.mark.sampled(24)
@pytest.mark.parametrize("sequence", SEQUENCES, ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_numbers_wherever_they_come_from(
    installed: Any, place: Any, sequence: Sequence[Any]
) -> None:
    f, change = place()
    for kind in (torch.float32, torch.int64):
        jitted = installed(f)  # a global's values may reach the limit of programs for both types
        x = torch.linspace(-2, 2, 8).to(kind).requires_grad_(kind.is_floating_point)
        for a in sequence:
            change(a)
            assert_same(outcome(jitted, [x], a), outcome(f, [x], a), f"{kind} {a!r}")


PAIRS = [(1, 1), (0, 0), (2, 3), (3, 3), (-1, 2), (4, 4), (2, -2), (2**31, 2**31 + 1)]
OF_TWO: dict[str, Callable[..., Any]] = {
    "sums": lambda xs, a, b: xs[0].sin() * a + xs[0].cos() * b + (a == b) + (a - b) * xs[0],
    "quotients": lambda xs, a, b: xs[0].sin() * (a // (b * b + 1)) + (a % (b * b + 1)) * xs[0],
    "parity": lambda xs, a, b: (xs[0] * a if (a + b) % 2 else xs[0] * b).cos() + a * b,
}


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("program", OF_TWO)
def test_two_numbers_equal_and_not(installed: Any, program: str) -> None:
    f = OF_TWO[program]
    jitted = installed(f)
    x = torch.linspace(-2, 2, 8, requires_grad=True)
    for a, b in PAIRS:
        assert_same(outcome(jitted, [x], a, b), outcome(f, [x], a, b), f"{a}, {b}")


OF_SIZES: dict[str, Callable[..., Any]] = {
    "narrow": lambda xs, n: xs[0].sin().narrow(0, n, 2) * n,
    "part": lambda xs, n: torch.cat([xs[0].sin(), xs[0][:n].cos() * n]).view(-1, 1) * 2,
    "repeat": lambda xs, n: (xs[0].sin().repeat(n) * n).cos(),
    "arange": lambda xs, n: ((xs[0].sin().sum() + 0.5) * torch.arange(n, n + 4)).cos(),
    "step": lambda xs, n: (xs[0].sin()[::n] * n).cos(),
    "dim": lambda xs, n: (xs[0].view(2, 2, 2).sin().sum(n) * 2).cos(),
    "view": lambda xs, n: (xs[0].sin().view(n, -1) * n).sum(0),
    "chunk": lambda xs, n: sum(c.sum() * i for i, c in enumerate(xs[0].sin().chunk(n))),
    "shift": lambda xs, n: xs[0] * ((torch.arange(8) << n) + 1),
}
COUNTS = [(2, 0, 1, 3, 4), (1, 0, 2, -1, 8), (4, 2, 1, 0, 2)]


@pytest.mark.slow
@pytest.mark.sampled(18)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("program", OF_SIZES)
def test_numbers_that_sizes_follow_from(
    installed: Any, program: str, counts: Sequence[int]
) -> None:
    f = OF_SIZES[program]
    if program == "shift":
        counts = [n for n in counts if n >= 0]  # C++ leaves others undefined
    jitted = installed(f)
    x = torch.linspace(-2, 2, 8, requires_grad=True)
    for n in counts:
        assert_same(outcome(jitted, [x], n), outcome(f, [x], n), f"{n}")


# -------------------------------------------------------------------------------- operations

VALUES: dict[type, tuple[Any, ...]] = {
    int: (1, 0, 2, -1, 3),
    float: (0.5, 0.0, 2.0, -1.5),
    bool: (True, False),
}


def with_number(op: Any) -> Iterator[tuple[list[torch.Tensor], Callable[..., Any], Any]]:
    """Calls of ``op`` as functions of tensors and one number, and the number that it has there."""
    seen = set()
    for args, kwargs in sample_arguments(op, torch.float32, 6, op.supports_autograd):
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for place, leaf in enumerate(leaves):
            key = (place, type(leaf), len(leaves))
            if type(leaf) not in VALUES or key in seen:
                continue
            seen.add(key)
            yield tensors, _with(op, leaves, spec, place), leaf


def _with(op: Any, leaves: list[Any], spec: Any, place: int) -> Callable[..., Any]:
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def f(tensors: Any, a: Any) -> Any:
        given = list(leaves)
        given[place] = a
        for i, tensor in zip(places, tensors, strict=True):
            given[i] = tensor
        args, kwargs = pytree.tree_unflatten(given, spec)
        return op.op(*args, **kwargs)

    return f


UNWRITTEN = {"grid_sampler_2d", "grid_sampler_3d"}
"""Operations whose results eager leaves unwritten for numbers that stand for no mode."""

UNWRITTEN_FOR = {("native_group_norm", 0)}
"""Operations whose results eager leaves unwritten for a number: without groups or elements."""

OPERATIONS = [
    pytest.param(op, id=full_name(op))
    for op in op_db
    if torch.float32 in op.supported_dtypes("cpu")
    and full_name(op) not in {*UNDEFINED, *UNWRITTEN}
    and not op.name.startswith(("linalg.", "sparse.", "fft.", "masked."))
]


NEAR = {"nn.functional.layer_norm": {"rtol": 1.3e-6, "atol": 5e-5}}
"""The weight's gradient of one normalised element is 0, which eager rounds to 2.4e-5."""


@pytest.mark.sampled(300)
@pytest.mark.parametrize("op", OPERATIONS)
def test_operations_with_a_number(installed: Any, op: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated operations, and of arguments in eager
        warnings.filterwarnings("error", ".*failed on region", tj.TjWarning)
        for tensors, f, number in with_number(op):
            torch.compiler.reset()
            jitted = installed(f)
            for a in (number, *VALUES[type(number)]):
                if (full_name(op), a) in UNWRITTEN_FOR:
                    continue
                torch.manual_seed(0)
                expected = outcome(f, tensors, a)
                torch.manual_seed(0)
                got, near = outcome(jitted, tensors, a), NEAR.get(full_name(op), {})
                assert_same(got, expected, f"{a!r} for {number!r}", **near)


INTEGERS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "put at places": lambda x, n: x.sin().scatter(0, torch.tensor([[0, 1]]), n) * 2,
    "put into bytes": lambda x, n: (x * 3).to(torch.int8).scatter(0, torch.tensor([[0]]), n) + 1,
    "a divisor": lambda x, n: torch.nn.functional.celu(x.sin(), n) * 2,
    "a bound": lambda x, n: torch.nn.functional.smooth_l1_loss(x.sin(), x * 2, beta=n) * 2,
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_that_kernels_refuse(installed: Any, name: str, gradients: bool) -> None:
    """Each is a symbol when it comes to have a value that eager refuses."""
    x = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_(gradients)

    def f(tensors: Any, n: int) -> torch.Tensor:
        return INTEGERS[name](tensors[0], n)

    jitted = installed(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for n in (2, 1, 0, 3, -1, 1000):
            assert_same(outcome(jitted, [x], n), outcome(f, [x], n), f"{name}: {n}")


@pytest.mark.slow
def test_a_number_that_the_program_reads_and_that_is_known(fusing: Any) -> None:
    """As in Longformer, which divides its sizes by an operator."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n: Any = torch.div(x.size(0), 4, rounding_mode="trunc")
        y = x.view(n, 4, -1).sin() * 2
        return y + 1, x.new_zeros(n, 3) + y.sum(2)[:, :3]

    jitted = fusing(f)
    for _ in range(2):
        x = torch.randn(16, 6)
        torch.testing.assert_close(jitted(x), f(x))
    assert any("int 4" in str(p) for r in tj.explain(jitted).regions for p in _taken(r))


def _taken(use: Any) -> Any:
    return [f"{p.kind} {p.expr}" for p in use.kernel.region.inputs if hasattr(p, "expr")]


BITS: dict[str, Callable[[int], int]] = {
    "and": lambda n: n & 127,
    "or": lambda n: n | 1,
    "xor": lambda n: n ^ 3,
    "two": lambda n: n & (n + 1),
    "shifts": lambda n: (n << 2) - (n >> 1),
    "sum": lambda n: 2 * (n & 6) + 1,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("bits", BITS)
def test_bits_of_a_symbol_are_an_integer(
    installed: Callable[..., Any], bits: str, dtype: torch.dtype
) -> None:
    """Inductor took them for a float32, and read 64 bits of it."""
    large = torch.tensor([2**40 + 1, 2**30 + 123, 16777217, 5]).to(dtype)

    def f(x: torch.Tensor, n: int) -> Any:
        m = BITS[bits](n)
        return x == n, x ^ m, ((x + m) % 1000).to(torch.float64)

    jitted = installed(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for n in (3, 7, 9, 0, 1, 200):
            assert_same(jitted(large, n), f(large, n), f"{bits} of {n}", rtol=0, atol=0)


BY_LARGE: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "//": lambda x, n: (x + 1) // n,
    "floor": lambda x, n: torch.div(x + 1, n, rounding_mode="floor"),
    "trunc": lambda x, n: torch.div(x + 1, n, rounding_mode="trunc"),
    "%": lambda x, n: (x + 1) % n,
    "remainder of the number": lambda x, n: torch.remainder(n, x + 1),
    "fmod": lambda x, n: torch.fmod(x + 1, n),
    "/": lambda x, n: (x + 1) / n,
    "product and sum": lambda x, n: (x + 1) * n + n,
    "alpha": lambda x, n: torch.add(x, x + 1, alpha=n),
    "where": lambda x, n: torch.where(x > 1, x + 1, n),
    "clamp": lambda x, n: (x + 1).clamp(min=n),
    "comparison": lambda x, n: ((x + 1) < n).to(x.dtype) * 2,
    "full": lambda x, n: torch.full_like(x, n) + x,
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str
)
@pytest.mark.parametrize("name", BY_LARGE)
def test_a_symbol_of_more_than_32_bits(
    installed: Callable[..., Any], name: str, dtype: torch.dtype
) -> None:
    """A divisor was a constant of 32 bits: ``x // 2**33`` of floats was ``x / 0``."""
    x = torch.tensor([1.0, -3.0, 5e9, -7e10, 2.5, 0.0] * 3).to(dtype)
    f = BY_LARGE[name]
    jitted = installed(f)
    for n in (3, 300, 2**33, 1 - 2**40, 7, 2**31, -5):
        assert_same(jitted(x, n), f(x, n), f"{name} by {n}")

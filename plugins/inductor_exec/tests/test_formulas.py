"""Formulas that replace operators: results are those of the operators."""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tj_inductor import formulas
from tj_inductor.adapter import compiling
from tj_inductor.formulas import IN_CACHE, SAY_WHETHER, in_cache, nll_loss_backward, var_mean
from torch._inductor.decomposition import decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR = torch.ops.aten.nll_loss_backward.default
CASES = [*itertools.product((0, 1, 2), (-100, 2), (False, True), (torch.float32, torch.float16))]


@pytest.mark.parametrize(("reduction", "ignored", "weighted", "dtype"), CASES)
def test_gradient_of_a_negative_log_likelihood(
    reduction: int, ignored: int, weighted: bool, dtype: torch.dtype
) -> None:
    weight = torch.rand(5).to(dtype) if weighted else None
    for inputs, target in (
        (torch.randn(4, 5), torch.tensor([0, 4, 2, 2])),
        (torch.randn(5), torch.tensor(3)),
    ):
        forward = torch.ops.aten.nll_loss_forward.default
        loss, total = forward(inputs.to(dtype), target, weight, reduction, ignored)
        args = (torch.rand_like(loss), inputs.to(dtype), target, weight, reduction, ignored, total)
        torch.testing.assert_close(nll_loss_backward(*args), OPERATOR(*args), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(25, 5), (5, -1), (5, 5, 5)])
def test_a_copy_has_any_shape(size: tuple[int, ...]) -> None:
    """PyTorch's formula makes a view first, which a transposed tensor does not have."""
    x, operator = torch.randn(5, 5, 5).transpose(0, 2), torch.ops.aten.view_copy.default
    mode = FakeTensorMode()
    with mode:
        fake = torch.empty(5, 5, 5).transpose(0, 2)
    graph = compiling.traced(lambda x: (operator(x, size),), [fake], mode)
    (found,), expected = graph(x), operator(x, size)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert found.stride() == expected.stride()


def test_kernels_with_it_write_no_zeros_first() -> None:
    mode = FakeTensorMode()
    with mode:
        args = (torch.empty(()), torch.empty(4, 5), torch.empty(4, dtype=torch.int64))
    graph = compiling.traced(lambda g, x, t: (OPERATOR(g, x, t, None, 1, -100, g),), args, mode)
    called = {str(node.target) for node in graph.graph.nodes}
    assert not any("scatter" in name for name in called)
    assert "aten.where.self" in called


SPREAD = torch.ops.aten.var_mean.correction
CORRECTIONS = (None, 0, 1, 1.5, 4, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((4, 3, 5), (0, 2)),
        ((4, 3), (-1,)),
        ((4, 3), None),
        ((4, 3), ()),
        ((), None),
        ((0, 3), (0,)),
    ],
)
def test_variance_and_mean(shape: tuple[int, ...], dim: list[int], dtype: torch.dtype) -> None:
    x = torch.randn(shape).add(3).to(dtype)
    for correction, keepdim in itertools.product(CORRECTIONS, (False, True)):
        options = {"correction": correction, "keepdim": keepdim}
        with warnings.catch_warnings():  # there are fewer elements than are corrected for
            warnings.simplefilter("ignore")
            expected = SPREAD(x, dim, **options)
        torch.testing.assert_close(var_mean(x, dim, **options), expected, equal_nan=True)


def test_what_is_left_to_inductor() -> None:
    large = torch.empty(IN_CACHE // 4 + 1)
    for x in (large, torch.empty(3, dtype=torch.complex64), torch.empty(3, device="meta")):
        assert var_mean(x) is NotImplemented
    mode = FakeTensorMode(shape_env=ShapeEnv())
    symbolic = mode.from_tensor(torch.empty(6, 3), static_shapes=False)
    assert var_mean(symbolic) is NotImplemented


def test_the_cache_is_one_that_is_near(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second cache, where the last one is of a size that many cores share."""
    monkeypatch.setattr("tj_inductor.formulas.CACHES", tmp_path)

    def found(*sizes: str) -> int:
        for level, size in enumerate(sizes, 1):
            (tmp_path / f"index{level}").mkdir(exist_ok=True)
            (tmp_path / f"index{level}" / "level").write_text(f"{level}\n")
            (tmp_path / f"index{level}" / "size").write_text(f"{size}\n")
        in_cache.cache_clear()
        return in_cache()

    try:
        assert found() == IN_CACHE
        assert found("48K", "1024K", "32768K") == IN_CACHE
        assert found("48K", "2048K", "491520K") == 2 << 20
        assert found("48K", "a lot", "491520K") == IN_CACHE
    finally:
        in_cache.cache_clear()


def test_a_norm_is_two_sums_of_what_is_in_the_cache() -> None:
    def norm(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stats = torch.zeros(3), torch.ones(3)
        return torch.ops.aten._native_batch_norm_legit_functional(x, None, None, *stats, True, 0, 1)

    mode = FakeTensorMode()
    for rows, passes in ((8, True), (IN_CACHE, False)):
        with mode:
            x = torch.empty(rows, 3, 1, 1)
        graph = compiling.traced(norm, [x], mode)
        called = {str(node.target) for node in graph.graph.nodes}
        assert ("aten.var_mean.correction" not in called) is passes


@pytest.mark.parametrize("operator", SAY_WHETHER, ids=str)
def test_bytes_say_whether_in_bytes(operator: Any) -> None:
    along = {"default": (), "dim": (1,), "dims": ([1],)}[operator._overloadname]
    for dtype in (torch.uint8, torch.float32, torch.int64):
        x = torch.tensor([[0, 3], [0, 0]], dtype=dtype)
        mode = FakeTensorMode()
        with mode:
            like = torch.empty(2, 2, dtype=dtype)
        graph = compiling.traced(lambda t: (operator(t, *along),), [like], mode)
        # The kernels of Inductor for what is left return truth values.
        called = graph.graph.find_nodes(op="call_function", target=operator)
        assert [node.args[0].meta["val"].dtype for node in called] != [torch.uint8]
        if operator in decompositions:  # Inductor has no kernel of it
            assert called == []
        (found,) = graph(x)
        assert torch.equal(found, operator(x, *along))
        assert found.dtype is operator(x, *along).dtype


def test_what_is_multiplied_by_zero_is_not_read() -> None:
    mode = FakeTensorMode()
    with mode:
        x, a, b = torch.empty(2), torch.empty(1, 4), torch.empty(4, 2)
    for beta, alpha in ((0, 1), (1, 0), (0, 0), (2, 3)):
        run = functools.partial(torch.ops.aten.addmm.default, beta=beta, alpha=alpha)
        graph = compiling.traced(lambda *args: (run(*args),), [x, a, b], mode)  # noqa: B023
        called = {str(node.target) for node in graph.graph.nodes}
        assert ("aten.addmm.default" in called) is (0 in (beta, alpha))


NUMBERS = (-2.5, 2.5, 1.0, -1.0, 0.1, -0.3, 0.0, -0.0, 1e10, -3e38, 1e-38, 7.0)
QUOTIENTS = (*NUMBERS, torch.inf, -torch.inf, torch.nan, *NUMBERS[:9])
DIVISIONS = {
    "floor_divide": lambda a, b: torch.ops.aten.floor_divide.default(a, b),
    "div": lambda a, b: torch.ops.aten.div.Tensor_mode(a, b, rounding_mode="floor"),
    "by a number": lambda a, b: torch.ops.aten.div.Scalar_mode(a, 0.1, rounding_mode="floor"),
    "remainder": lambda a, b: torch.ops.aten.remainder.Tensor(a, b),
    "remainder by a number": lambda a, b: torch.ops.aten.remainder.Scalar(a, torch.inf),
    "to zero": lambda a, b: torch.ops.aten.div.Tensor_mode(a, b, rounding_mode="trunc"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("division", DIVISIONS)
def test_quotients_that_are_floors(division: str, dtype: torch.dtype) -> None:
    x = torch.tensor(QUOTIENTS)
    a, b = x.repeat_interleave(len(x)).to(dtype), x.repeat(len(x)).to(dtype)
    if not dtype.is_floating_point:  # no kernel of integers divides by zero
        a, b = torch.arange(-9, 9), torch.tensor([4, -4, 3]).repeat(6)
    run, mode = DIVISIONS[division], FakeTensorMode()
    with mode:
        like = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in (a, b)]
    (found,) = compiling.traced(lambda a, b: (run(a, b),), like, mode)(a, b)
    expected = run(a, b)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    zero = expected == 0
    assert torch.equal(found.signbit()[zero], expected.signbit()[zero])


@pytest.mark.slow
def test_bools_of_places(fusing: Any) -> None:
    """Bools, and quotients, of numbers that are known at compile time to lie in a range."""

    def program(x: torch.Tensor) -> Any:
        places = torch.arange(8)
        low, middle = places < 2, places < 3
        quotients = torch.div(places.float(), 2, rounding_mode="floor"), places.float() % -2
        same = low == middle, low != middle, low == False, low != True  # noqa: E712
        both = torch.minimum(low, middle), torch.maximum(low, middle), low & middle, low ^ middle
        chosen = [torch.where(b, x, -x) for b in (*same, *both)]
        return chosen, [x * q for q in quotients]

    x = torch.rand(8)
    jitted = fusing(program)
    torch.testing.assert_close(jitted(x), program(x), rtol=0, atol=0)
    assert jitted.__tj__.session.regions.kernels


SIZES = torch.logspace(-37, 38, 3001, dtype=torch.float64)
ARGUMENTS = {
    "atanh": torch.cat([SIZES, 1 - SIZES, -SIZES]),
    "acosh": torch.cat([SIZES, 1 + SIZES]),
}
"""Arguments of all sizes, and near those where the functions begin and end."""

LARGEST = {torch.float32: 4e-7, torch.float64: 1e-15, torch.bfloat16: 4e-3, torch.float16: 5e-4}


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_elementary_functions_are_right_for_all_sizes(name: str, dtype: torch.dtype) -> None:
    formula = getattr(formulas, name)
    ends = torch.tensor([0.0, -0.0, 1.0, -1.0, 1.5, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([ARGUMENTS[name], ends]).to(dtype)
    found, exact = formula(x), getattr(torch, name)(x.double())
    tiny = torch.finfo(dtype).smallest_normal * LARGEST[dtype]
    torch.testing.assert_close(
        found, exact.to(dtype), rtol=LARGEST[dtype], atol=tiny, equal_nan=True
    )
    assert torch.equal(found.signbit() | found.isnan(), exact.signbit() | exact.isnan())


@pytest.mark.slow
def test_kernels_take_these_formulas(fusing: Any) -> None:
    x = torch.tensor([1e-10, -0.0, 1e-40, 0.5] * 8)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.atanh(x) * 1e10, torch.acosh(x * 1e30 + 1), torch.erf(x) * 1e10

    for got, expected in zip(fusing(f)(x), f(x), strict=True):
        torch.testing.assert_close(got, expected)
        assert torch.equal(got.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_signs_of_halves(dtype: torch.dtype, fusing: Any) -> None:
    x = torch.tensor([0.0, -0.0, torch.nan, torch.inf, 1e-6, 2.0], dtype=dtype)
    x = torch.cat([x, -x, torch.randn(400, dtype=dtype)])

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sign = torch.signbit(x)
        return sign, ~sign

    for found, expected in zip(fusing(program)(x), program(x), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.slow
def test_the_inverse_of_the_error_function_is_right_near_its_ends(fusing: Any) -> None:
    x = torch.linspace(0.999, 1 - 6e-8, 4000)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.erfinv(x * 1.0) * 2.0 - 1

    torch.testing.assert_close(fusing(f)(x), f(x))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_of_average_pools_whose_last_window_is_cut(dims: int, fusing: Any) -> None:
    x = torch.randn(1, 2, *(7 + n for n in range(dims)), requires_grad=True)
    pool = getattr(torch.nn.functional, f"avg_pool{dims}d")

    def program(x: torch.Tensor) -> torch.Tensor:
        return pool(x, 3, 2, ceil_mode=True)

    tangent = torch.randn_like(program(x))
    (expected,) = torch.autograd.grad(program(x), x, tangent)
    (found,) = torch.autograd.grad(fusing(program, {"minimum": 1})(x), x, tangent)
    torch.testing.assert_close(found, expected)


def test_pools_of_symbolic_sizes_are_in_no_region(fusing: Any) -> None:
    def program(x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x, size)

    jitted = fusing(program, {"minimum": 1}, dynamic=True)
    x = torch.randn(1, 2, 8, 8)
    torch._dynamo.mark_static(x)
    for size in ((5, 7), (3, 4)):
        torch.testing.assert_close(jitted(x, size), program(x, size))

"""Fused programs of mixed data types, where Inductor's kernels compute otherwise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch

FLOATS = (math.nan, math.inf, -math.inf, 300.0, -300.0, 128.5, -129.5, 7e4, -7e4, -0.0, 1.9, -1.9)


def same(fusing: Any, program: Callable[..., Any], *given: torch.Tensor) -> bool:
    """Check that a region of ``program`` returns the bits of eager, and that none fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = fusing(program, {"minimum": 1})(*given)
    pairs = list(zip(found, program(*given), strict=True))
    return all(_bits(x) == _bits(y) and x.dtype == y.dtype for x, y in pairs)


def _bits(x: torch.Tensor) -> list[Any]:
    signs = torch.signbit(x.nan_to_num()).tolist() if x.is_floating_point() else []
    return [*map(str, x.reshape(-1).tolist()), *signs]


def test_floats_out_of_range_become_bytes(fusing: Any) -> None:
    values = torch.tensor(FLOATS * 6)

    def program(*given: torch.Tensor) -> Any:
        copies = (torch.zeros_like(x, dtype=torch.int8).copy_(x) for x in given)
        return *(x.to(torch.int8) for x in given), *copies

    halves = (values.to(torch.bfloat16), values.to(torch.float16))
    assert same(fusing, program, values, values.double(), *halves)


@pytest.mark.slow
def test_no_number_becomes_an_integer(fusing: Any) -> None:
    """Of a single element, and of those behind the last whole vector."""
    values = torch.tensor([math.nan, math.inf, -math.inf, 3e9, -3e9] * 7)

    def program(*given: torch.Tensor) -> Any:
        types = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
        return [x.to(dtype) for x in given for dtype in types]

    halves = [values.to(dtype) for dtype in (torch.bfloat16, torch.float16)]
    assert same(fusing, program, *halves, *(x[:1] for x in halves), values[:1], values[1])


@pytest.mark.slow
def test_constants_out_of_range_become_integers(fusing: Any) -> None:
    """A compiler knows the constant where it compiles a branch, and may convert it as it likes."""
    values = torch.tensor(FLOATS * 3)
    some = torch.arange(len(values)) % 3 == 0

    def program(*given: torch.Tensor) -> Any:
        types = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
        constants = (math.nan, math.inf, -math.inf, 6e4)
        filled = [x.masked_fill(some[: len(x)], c) for x in given for c in constants]
        return [x.to(dtype) for x in filled for dtype in types]

    assert same(fusing, program, values, values[:1], values.half(), values[:1].bfloat16())


@pytest.mark.parametrize("alpha", [2, 0])
def test_multiples_of_bools_stay_in_their_memory(fusing: Any, alpha: int) -> None:
    a, b = torch.arange(33) % 2 == 0, torch.arange(33) % 3 == 0

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.add(a, b, alpha=alpha), a & b

    assert same(fusing, program, a, b)


@pytest.mark.slow
def test_bools_are_added_at_places(fusing: Any) -> None:
    a, places = torch.arange(9) % 2 == 0, torch.tensor([0, 3, 3])

    def program(a: torch.Tensor, places: torch.Tensor) -> Any:
        return a.index_add(0, places, ~a[:3], alpha=2), ~a

    assert same(fusing, program, a, places)


@pytest.mark.slow
def test_the_first_of_two_zeros_is_chosen(fusing: Any) -> None:
    a = torch.tensor([-0.0, 0.0, math.nan, 1.0, math.nan, math.inf] * 6)
    b = torch.tensor([0.0, -0.0, 1.0, math.nan, math.nan, -0.0] * 6)

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.fmax(a, b), torch.fmin(a, b), torch.fmax(a, b.long()), torch.fmin(a.half(), b)

    assert same(fusing, program, a, b.nan_to_num(2.0))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_integers_are_rounded_to_halves_first(fusing: Any, dtype: torch.dtype) -> None:
    a = torch.tensor([257, 2049, 4099, 10_001, -7_777, 12_345] * 6)
    b = torch.tensor([2.5, 1.0, -3.0, 0.5, 7.0, 0.25] * 6).to(dtype)

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        logarithms = torch.xlogy(a, b.abs()), torch.special.xlog1py(a, b.abs())
        return a % b, *logarithms

    found, exact = fusing(program, {"minimum": 1})(a, b), program(a.to(dtype).double(), b.double())
    for x, y in zip(found, exact, strict=True):
        assert x.dtype == dtype
        assert torch.allclose(x, y.to(dtype), equal_nan=True, rtol=torch.finfo(dtype).eps)


@pytest.mark.slow
def test_halves_are_interpolated_in_float32(fusing: Any) -> None:
    a = torch.tensor([0.3, -0.7, -0.7, -129.0, 0.3, 1.0] * 6)
    b = torch.tensor([-1.0, 2.5, 1.5, 300.0, -0.7, 2.0] * 6)

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.lerp(a, b, 0.25), torch.lerp(a, b, b), a + b

    for dtype in (torch.float16, torch.bfloat16):
        found = fusing(program, {"minimum": 1})(a.to(dtype), b.to(dtype))
        exact = program(a.to(dtype).double(), b.to(dtype).double())
        for x, y in zip(found[:1], exact[:1], strict=True):
            assert torch.allclose(x.double(), y, rtol=torch.finfo(dtype).eps / 2, atol=1e-7)


@pytest.mark.slow
def test_powers_of_two_of_another_type(fusing: Any) -> None:
    a, n = torch.tensor([1.5, -0.0, 3.0] * 6), torch.tensor([3, -2, 0] * 6)

    def program(a: torch.Tensor, n: torch.Tensor) -> Any:
        others = torch.ldexp(a.bfloat16(), n.half()), torch.ldexp(a, n.double()), torch.ldexp(n, n)
        return torch.ldexp(a, n), *others

    assert same(fusing, program, a, n)


@pytest.mark.slow
def test_a_factor_of_integers_is_no_number(fusing: Any) -> None:
    a = torch.tensor([1, -2, 0, 100] * 9, dtype=torch.int8)

    def program(a: torch.Tensor) -> Any:
        return torch.addcmul(a, a, a, value=math.inf), a + 1

    with pytest.raises(RuntimeError, match="cannot be converted"):
        fusing(program, {"minimum": 1})(a)


@pytest.mark.slow
def test_zeros_keep_their_sign_where_they_are_clamped(fusing: Any) -> None:
    a = torch.tensor([-0.0, 0.0, 7.0, -1.0, math.nan, 3.0] * 6)

    def program(a: torch.Tensor) -> Any:
        functional = torch.nn.functional
        bounds = functional.relu6(a), functional.hardtanh(a, -2, 0), functional.hardtanh(a)
        ends = torch.clamp(a, 0, 3), torch.clamp(a, max=-0.0), torch.clamp(a, min=0.0)
        return *bounds, *ends, torch.clamp(a.nan_to_num().short(), -0.0, 3)

    assert same(fusing, program, a)


@pytest.mark.slow
def test_a_large_half_is_rounded_to_digits(fusing: Any) -> None:
    a = torch.tensor([40000.0, 1.234, -2.345, 1e-3] * 9, dtype=torch.float16)

    def program(a: torch.Tensor) -> Any:
        return torch.round(a, decimals=2), torch.round(a, decimals=-2)

    assert same(fusing, program, a)


@pytest.mark.slow
def test_a_factor_comes_first(fusing: Any) -> None:
    a, b = torch.tensor([1e30, 1e-30, 2.0] * 12), torch.tensor([1e30, 1e-30, 3.0] * 12)

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        zeros = torch.zeros_like(a)
        products = torch.addcmul(zeros, a, b, value=1e-30), torch.addcmul(zeros, a, b, value=1e30)
        return *products, torch.addcdiv(zeros, a, b, value=1e30), torch.addcmul(zeros, a, b)

    found = fusing(program, {"minimum": 1})(a, b)
    torch.testing.assert_close(found, program(a, b))


@pytest.mark.slow
def test_a_number_becomes_a_tensor_of_the_default_type(fusing: Any) -> None:
    a = torch.arange(20, dtype=torch.int8)

    def program(a: torch.Tensor) -> Any:
        return a + torch.scalar_tensor(True), a * torch.scalar_tensor(2)

    assert same(fusing, program, a)


def test_zeros_of_either_sign_are_two_numbers(fusing: Any) -> None:
    a = torch.tensor([1.0, -2.0, 3.0] * 8)

    def program(a: torch.Tensor) -> Any:
        chosen = torch.where(a > 0, 0.0, a), torch.where(a > 0, -0.0, a)
        return *chosen, a.masked_fill(a > 0, 0.0), a.masked_fill(a > 0, -0.0)

    assert same(fusing, program, a)


@pytest.mark.slow
def test_a_number_that_the_type_does_not_hold(fusing: Any) -> None:
    half, whole = torch.ones(20, dtype=torch.float16), torch.ones(20, dtype=torch.int16)

    def clamped(half: torch.Tensor, whole: torch.Tensor) -> Any:
        return half.clamp(2**33, None) + 1, whole * 2

    def padded(half: torch.Tensor, whole: torch.Tensor) -> Any:
        return torch.nn.functional.pad(whole, (1, 1), value=2**33) + 1, half * 2

    for program in (clamped, padded):
        with pytest.raises(RuntimeError, match="cannot be converted"):
            program(half, whole)
        with pytest.raises(RuntimeError, match="cannot be converted"):
            fusing(program, {"minimum": 1})(half, whole)


@pytest.fixture
def four_threads() -> Iterator[None]:
    """Four threads, for which Inductor makes other kernels than for one."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def ends(x: torch.Tensor) -> list[torch.Tensor]:
    """Smallest and largest elements of a matrix ``x`` along each and along both dimensions."""
    found = [x.amax(), x.amin()]
    for dim in (0, 1):
        found += [x.amax(dim), x.amin(dim), *x.max(dim), *x.min(dim)]
    return found


@pytest.mark.parametrize("shape", [(700, 513), (257, 1000), (3, 2001)], ids=str)
def test_ends_of_bools(fusing: Any, four_threads: None, shape: tuple[int, ...]) -> None:
    x = torch.arange(math.prod(shape)).view(shape) % 97 > 95
    found = fusing(lambda x: ends(x.logical_or(x)), {"minimum": 1})(x)
    for mine, eager in zip(found, ends(x), strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_ends_of_halves_with_several_threads(
    fusing: Any, four_threads: None, dtype: torch.dtype
) -> None:
    x = (torch.arange(700 * 513).view(700, 513) * 7 % 1001 - 500).to(dtype)
    x[3, 5] = math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = fusing(lambda x: ends(x * 1), {"minimum": 1})(x)
    for mine, eager in zip(found, ends(x), strict=True):
        assert mine.dtype == eager.dtype
        assert torch.equal(mine.nan_to_num(7), eager.nan_to_num(7))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
def test_many_halves_are_added_at_a_place(fusing: Any, dtype: torch.dtype) -> None:
    places = (torch.arange(600) % 3 == 0).long()

    def program(a: torch.Tensor, b: torch.Tensor) -> list[Any]:
        source = b * 2
        made = [
            a.scatter_add(0, places, source),
            a.scatter_reduce(0, places, source, "sum", include_self=False),
            a.scatter(0, places, source, reduce="add"),
            a.scatter(0, places, 1.1, reduce="add"),
        ]
        return [x + 1 for x in made]

    a, b = torch.tensor([0.5, 2.0], dtype=dtype), torch.linspace(0, 2, 600).to(dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The reduce argument of torch.scatter")
        assert same(fusing, program, a, b)


@pytest.mark.parametrize("size", [1, pytest.param(33, marks=pytest.mark.slow)])
def test_reductions_of_bools(fusing: Any, size: int) -> None:
    def program(a: torch.Tensor, *given: torch.Tensor) -> list[Any]:
        found = [*a.min(1), *a.max(1), *a.min(0), *a.max(0)]
        found += [x.sum(1, dtype=torch.bool) for x in given]
        found += [x.prod(1, dtype=torch.bool) for x in given]
        return [*found, *(x.sum(dtype=torch.bool) for x in given)]

    a = torch.arange(3 * size).view(3, size) % 5 > 0
    whole = torch.arange(-size, 2 * size).view(3, size)
    assert same(fusing, program, ~a, a, whole, whole.int(), whole.float(), whole.to(torch.uint8))


MULTIPLES = {
    "of a product": lambda m, a, b: torch.add(m, a @ b, alpha=0.5),
    "beside a product": lambda m, a, b: torch.add(a @ b, m * 2, alpha=-3),
    "less a product": lambda m, a, b: torch.sub(m, a @ b, alpha=2),
    "of products": lambda m, a, b: torch.add(
        a.expand(2, 8, 8) @ b, m.expand(2, 8, 8) @ a, alpha=0.1
    ),
    "in place": lambda m, a, b: m.mul(0.9).add_(a @ b, alpha=0.1),
    "of a number": lambda m, a, b: torch.add(a @ b, 3, alpha=2),
    "to a number": lambda m, a, b: torch.add(0.25, a + b, alpha=0.5) - m,
    "of one type": lambda m, a, b: torch.add(m.int(), a.int(), alpha=3) * 2,
    "of two types": lambda m, a, b: torch.add(m, a.int(), alpha=3) * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MULTIPLES)
def test_multiples(fusing: Any, name: str, dtype: torch.dtype) -> None:
    """Inductor loses the factor where it makes an `addmm` of the sum."""
    program = MULTIPLES[name]
    given = [torch.randn(8, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    found, expected = fusing(program, {"minimum": 1})(*given), program(*given)
    torch.testing.assert_close(found, expected)
    if expected.requires_grad:
        got, wanted = (
            torch.autograd.grad(y.sum(), given, allow_unused=True) for y in (found, expected)
        )
        torch.testing.assert_close(got, wanted)

"""Products and factors that differ between calls, some of which are zero."""

from __future__ import annotations

import pytest
from tj_torch.capture.eager_probe import captured_whole, equal_to_eager

CALLS = tuple(
    f"f(torch.ones({size}), {number})" for size, number in ((2, 1.5), (3, -2.5), (4, 3.5))
)
PRODUCTS = (
    "math.prod([a, 0])",
    "math.prod((0.0, a))",
    "math.prod([a], start=0)",
    "math.prod([-1.0 * a, 0])",
    "math.prod([a, x.shape[0] - x.shape[0]])",
    "math.prod([-x.shape[0], 0.0])",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_has_the_sign_of_eager(product: str) -> None:
    equal_to_eager(f"import math\ndef f(x, a): return x + 1, {product}", *CALLS)()


def test_products_without_zero_are_captured() -> None:
    text = "import math\ndef f(x, a): return x * math.prod([a, 2.0]), math.prod(x.shape)"
    captured_whole(text, CALLS[0])


@pytest.mark.parametrize("factor", ["n", "(n, 1.5)", "[n, n]"])
def test_whole_factors_of_an_interpolation_are_captured(factor: str) -> None:
    text = f"""
import torch
def f(x, n): return torch.nn.functional.interpolate(x, scale_factor={factor})
"""
    captured_whole(text, *(f"f(torch.ones(1, 1, 4, 4), {n})" for n in (1, 2, 3)))


@pytest.mark.parametrize("size", ["is_causal=n > 1", "enable_gqa=k.shape[1] != 4"])
def test_truths_of_sizes_are_arguments_of_attention(size: str) -> None:
    text = f"""
import torch
def f(q, k):
    n = q.shape[2]
    return torch.nn.functional.scaled_dot_product_attention(q, k, k, {size})
"""
    shapes = (5, 2), (3, 2), (1, 2), (1, 4), (4, 4)
    if "gqa" not in size:
        shapes = (5, 4), (3, 4), (1, 4), (4, 4)
    calls = (f"f(torch.ones(2, 4, {n}, 8), torch.ones(2, {heads}, 7, 8))" for n, heads in shapes)
    captured_whole(text, *calls)


TEXTS = (
    "str(n), repr(n)",
    "hex(n), bin(n), oct(n)",
    "'%d' % n, '%s of %s' % (n, n + 1)",
    "str(x.shape), str(tuple(x.shape)), str([n, 'a'])",
    "str(a), repr(a), str(n > 3)",
    "~n, x[~(n - 1)], f'{~n} {-n}'",
)


@pytest.mark.parametrize("texts", TEXTS)
def test_texts_of_sizes_are_captured(texts: str) -> None:
    text = f"""
def f(x, a):
    n = x.shape[0]
    return x * a, {texts}
"""
    captured_whole(text, *CALLS)
    equal_to_eager(text, *CALLS)()


OPERATORS = (
    "torch.ops.aten.avg_pool2d(x[None], [2, 2], [1, 1], n)",
    "torch.ops.aten.avg_pool2d.default(x[None], 2 + n, padding=n, stride=1 + n)",
    "torch.ops.aten.sum.dim_IntList(x, n, n > 0)",
    "torch.ops.aten.sum(x, dim=n, keepdim=n > 0) + n",
)
"""Calls of operators that make a list of a number, if it is no symbol."""


@pytest.mark.parametrize("call", OPERATORS)
def test_lists_that_are_numbers_are_arguments_of_operators(call: str) -> None:
    text = f"def f(x):\n    n = x.shape[0] - 3\n    return {call}"
    calls = [f"f(torch.arange(4.0 * {rows}).reshape({rows}, 4) / 12)" for rows in (4, 3, 4)]
    captured_whole(text, *calls)
    equal_to_eager(text, *calls)()

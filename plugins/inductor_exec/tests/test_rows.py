"""Sums of rows in blocks, and batch norms whose factors are kept: eager's values and strides."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_inductor.sums import LARGE, sum_of_rows

ROWS = [
    ((512, 256), [0]),
    ((520, 256), [0]),
    ((1100, 100), [0]),
    ((8, 64, 160), [0, 1]),
    ((8, 64, 160), [0]),
    ((8, 64, 160), [1]),
    ((8, 64, 160), [1, 2]),
    ((64, 3, 16, 16), [0, 2, 3]),
    ((256, 256), [0, 1]),
    ((65536,), [0]),
    ((70000, 1), [0]),
    ((1, 256, 512), [0, 1]),
]


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str
)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dims"), ROWS, ids=str)
def test_sums(
    shape: tuple[int, ...], dims: list[int], keepdim: bool, dtype: torch.dtype, fusing: Any
) -> None:
    layouts = [torch.arange(torch.Size(shape).numel()).remainder(7).reshape(shape).to(dtype)]
    layouts.append(layouts[0].transpose(0, -1).contiguous().transpose(0, -1))
    if len(shape) == 4:
        layouts.append(layouts[0].to(memory_format=torch.channels_last))

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum(dims, keepdim=keepdim) * 2, (x * x).sum(dims, keepdim=keepdim)

    for x in layouts:
        for found, expected in zip(fusing(f)(x), f(x), strict=True):
            torch.testing.assert_close(found, expected)  # of small integers: exact in float32
            assert found.stride() == expected.stride()


CHAINS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "sum": (lambda x: (x.abs() + 1).sum((0, 1)), (64, 33, 9)),
    "mean": (lambda x: (x * 1.5 + 1).mean((0, 1)), (64, 33, 9)),
    "variance": (lambda x: (x.abs() + 1).var((0, 1), unbiased=False), (64, 33, 9)),
    "many": (lambda x: (x.abs() + 1).sum((0, 1)), (512, 128, 16)),
    "gradient of a bias": (lambda x: (x.abs() + 1).sum(0), (4096, 24)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_sums_of_many_rows_are_as_exact_as_eagers(name: str, fusing: Any) -> None:
    """Where rows are added one after another, the error is ten to thirty times as large."""
    program, shape = CHAINS[name]
    jitted = fusing(program)
    found, plain = [], []
    for seed in range(4):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        exact = program(x.double())
        for errors, f in ((found, jitted), (plain, program)):
            errors.append(((f(x) - exact).abs().max() / exact.abs().max()).item())
    # Eager's variance is computed in float64.
    assert sum(found) <= (8 if name == "variance" else 4) * sum(plain)


def test_which_sums_are_of_blocks() -> None:
    rows = torch.ones(LARGE // 2 // 64, 64)
    assert torch.equal(sum_of_rows(rows, [0]), rows.sum(0))
    assert sum_of_rows(rows, [-2], True).shape == (1, 64)
    assert sum_of_rows(rows.bfloat16(), [0], dtype=torch.float64).dtype == torch.float64
    assert sum_of_rows(torch.ones(2039, 64), [0]) is NotImplemented  # a prime number of rows
    assert sum_of_rows(rows[:248], [0]) is NotImplemented  # few
    assert sum_of_rows(rows, [1]) is NotImplemented
    assert sum_of_rows(rows, []) is NotImplemented
    assert sum_of_rows(torch.ones(()), [0]) is NotImplemented
    assert sum_of_rows(rows[:, ::2], [0]) is NotImplemented
    assert sum_of_rows(rows.long(), [0]) is NotImplemented
    assert sum_of_rows(rows, [0], dtype=torch.int64) is NotImplemented
    assert sum_of_rows(rows.expand(4, -1, -1), [0]) is NotImplemented


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(4, 8), (4, 8, 5), (4, 8, 6, 6), (2, 8, 3, 3, 3)], ids=str)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norms(
    affine: bool, training: bool, shape: tuple[int, ...], dtype: torch.dtype, fusing: Any
) -> None:
    def f(x: torch.Tensor, *args: torch.Tensor | None) -> torch.Tensor:
        return F.batch_norm(x * 1.5, *args, training=training).sin() * 2

    torch.manual_seed(0)
    x, (mean, weight, bias) = torch.randn(shape).to(dtype), torch.randn(3, 8).to(dtype)
    statistics = mean, torch.rand(8).to(dtype) + 0.5
    more = (weight, bias) if affine else (None, None)
    layouts = [x, x.to(memory_format=torch.channels_last)] if x.dim() == 4 else [x]
    for given in layouts:
        both = [(g.requires_grad_(), *(t.clone() for t in statistics), *more)
                for g in (given.clone(), given.clone())]  # fmt: skip
        jitted = fusing(f)
        found, expected = jitted(*both[0]), f(*both[1])
        tangent = torch.randn_like(expected)
        gradients = [torch.autograd.grad(y, args[0], tangent)[0]
                     for y, args in ((found, both[0]), (expected, both[1]))]  # fmt: skip
        half = dtype == torch.bfloat16
        wide = {"atol": 0.05, "rtol": 0.05} if half else {}
        loose = {"atol": 0.2, "rtol": 0.05} if half else {"atol": 1e-5, "rtol": 1e-4}
        torch.testing.assert_close(found, expected, **wide)
        torch.testing.assert_close(*gradients, **loose)
        assert [t.stride() for t in (found, gradients[0])] == [
            t.stride() for t in (expected, gradients[1])
        ]
        torch.testing.assert_close(both[0][1:3], both[1][1:3])


@pytest.mark.probe
def test_a_batch_norm_in_evaluation_is_fused(texts: Any, fusing: Any) -> None:
    norm = torch.nn.BatchNorm2d(16).eval()
    x = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last)
    jitted = fusing(lambda x: norm(x).relu())
    with torch.no_grad():
        torch.testing.assert_close(jitted(x), norm(x).relu())
    assert "inductor" in str(tj.last_trace(jitted))
    # The root stands in a loop over channels, before that over all elements.
    (text,) = texts.written
    root, product = text.index("sqrt()"), text.rindex("x0<static_cast<int64_t>(128L)")
    assert root < product

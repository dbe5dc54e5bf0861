"""Elements that are moved in runs: `roll` and `upsample_nearest`, equal to eager to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]

ROLLS = [
    ((3,), (1,)),
    ((-3,), (1,)),
    ((0,), (0,)),
    ((7,), (1,)),
    ((15,), (-1,)),
    ((2, -1), (0, 1)),
    ((1, 1), (1, 1)),
    ((7, 6), (1, 0)),
    ((5,), ()),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("shifts", "dims"), ROLLS, ids=str)
def test_roll(
    shifts: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype, fusing: Any
) -> None:
    values = torch.randint(0, 5, (6, 7)).to(dtype)
    jitted = fusing(lambda x: (x.roll(shifts, dims) == x, x.roll(shifts, dims)))
    for x in (values, values.t().contiguous().t(), values.repeat(2, 2)[::2, ::2]):
        for found, expected in zip(
            jitted(x), (x.roll(shifts, dims) == x, x.roll(shifts, dims)), strict=True
        ):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()


def test_roll_is_a_copy(fusing: Any) -> None:
    jitted = fusing(lambda x: (x + 1, x.roll(0, 0), x.roll(6, 0)))
    x = torch.arange(6.0)
    for found in jitted(x):
        found.add_(1)
    assert torch.equal(x, torch.arange(6.0))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2},
        {"scale_factor": 3},
        {"scale_factor": 1.5},
        {"size": 12},
        {"size": 7},
        {"scale_factor": 4},
        {"scale_factor": 2.0, "recompute_scale_factor": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(6,), (6, 6), (3, 6, 6)], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_nearest(sizes: tuple[int, ...], options: dict[str, Any], last: bool, fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, mode="nearest", **options).relu()

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 3, *sizes).to(dtype)
        if last and len(sizes) == 2:
            x = x.to(memory_format=torch.channels_last)
        found, expected = fusing(f)(x), f(x)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


BEFORE = {
    "places": lambda x, i, v: x.index_put((torch.arange(2)[:, None], i), v),
    "scatter": lambda x, i, v: x.scatter(1, i.expand(2, 3), v),
    "sums at places": lambda x, i, v: x.scatter_add(1, i.expand(2, 3), v),
    "index_add": lambda x, i, v: x.index_add(1, i, v),
    "index_copy": lambda x, i, v: x.index_copy(1, i, v),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BEFORE)
def test_a_mask_after_places(name: str, fusing: Any) -> None:
    """Inductor writes to places of a tensor after the mask that takes its memory."""

    def program(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = BEFORE[name](x, i, v)
        x[x > 1] = -9.0
        x[:, 0][x[:, 0] < -1] += 1.0
        x[x.sum(1) > 2] = 0.5
        return x * 2

    x, v = torch.randn(2, 30, requires_grad=True), (torch.randn(2, 3) * 5).requires_grad_()
    i = torch.tensor([3, 7, 9])
    found, expected = fusing(program)(x, i, v), program(x, i, v)
    torch.testing.assert_close(found, expected)
    got, wanted = (torch.autograd.grad(y.sum(), (x, v)) for y in (found, expected))
    torch.testing.assert_close(got, wanted)


@pytest.mark.slow
def test_masks_and_values_of_one_element(fusing: Any) -> None:
    def program(x: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        mask = x > 0
        places = [mask], [x[:, 0] > 0]
        return [
            torch.index_put(x + 1, place, v, accumulate)
            for place in places
            for v in (value, value[0])
            for accumulate in (False, True)
        ]

    x, value = torch.randn(8, 5), torch.tensor([2.0])
    for found, expected in zip(fusing(program)(x, value), program(x, value), strict=True):
        torch.testing.assert_close(found, expected)

"""Loads, stores and conversions of bools, integers and halves in kernels, and their tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_inductor.loads import with_fast_loads
from torch._inductor import config

SIZES = [1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 130]

TYPES = {
    t: getattr(torch, t)
    for t in (
        "float32",
        "float64",
        "bfloat16",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
    )
}

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]

PROGRAMS: dict[str, Program] = {
    "stores": lambda x, y, m: (x > y, (x == y) | m, ~m & (x != 1)),
    "loads": lambda x, y, m: (torch.where(m, x, y), x.masked_fill(m, 2) + y),
    "ones": lambda x, y, m: (m * x, m.to(x.dtype) + y, (x > 0).to(torch.uint8) + m.to(torch.int8)),
    "widths": lambda x, y, m: (
        m.double() + x, m.float() * 3, m.long() + 1, m.bfloat16() + 1, m.half(),
    ),
    "truths": lambda x, y, m: (x.bool() & m, (x + y).bool(), x.bool() ^ y.bool()),
    "sums": lambda x, y, m: (
        (x > y).sum(-1), m.sum(0), (x > 0).any(-1), m.all(0), (m & (x < 1)).sum(),
    ),
    "numbers": lambda x, y, m: (x * 2 + y, (x - y).float() / 3, x.to(torch.uint8) + 1),
    "borders": lambda x, y, m: (
        torch.nn.functional.pad(x, (1, 2)) * 2, torch.cat([x, y, x], -1) + 1,
        torch.nn.functional.pad(m, (2, 1)),
    ),
    "places": lambda x, y, m: (
        x.gather(-1, (y > 0).long().clamp(max=x.shape[-1] - 1)) + 1,
        x[(m.long() * 2) % x.shape[0]] * 2,
    ),
}  # fmt: skip


@pytest.mark.sampled(80)
@pytest.mark.parametrize("simdlen", [None, 256, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_lengths(name: str, dtype: str, simdlen: int | None, fusing: Any) -> None:
    program = PROGRAMS[name]
    sizes = [s for n in SIZES[:: 1 if simdlen is None else 3] for s in ((3, n), (n,))]
    given = [_values(TYPES[dtype], *s) for s in sizes]

    def f(given: list[tuple[torch.Tensor, ...]]) -> list[tuple[torch.Tensor, ...]]:
        return [program(*some) for some in given]

    with config.patch({"cpp.simdlen": simdlen}):
        for size, found, expected in zip(sizes, fusing(f)(given), f(given), strict=True):
            torch.testing.assert_close(
                found, expected, equal_nan=True, msg=lambda m, s=size: f"{s} {m}"
            )


def _values(dtype: torch.dtype, *sizes: int) -> tuple[torch.Tensor, ...]:
    x, y = (torch.randint(0, 4, sizes).to(dtype) for _ in range(2))
    if dtype.is_floating_point:
        x = torch.where(torch.rand(sizes) < 0.1, float("nan"), x).to(dtype)
        y = torch.where(torch.rand(sizes) < 0.1, -0.0, y).to(dtype)
    return x, y, torch.rand(sizes) < 0.5


def test_bytes_with_another_sign(fusing: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.to(torch.int8) + 1, y.to(torch.uint8) // 3 + x, (x.to(torch.int8) * 2).float()

    for n in SIZES:
        x = (torch.arange(n) * 37).to(torch.uint8)
        y = (torch.arange(n) * 41 - 128).to(torch.int8)
        for found, expected in zip(fusing(f)(x, y), f(x, y), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.slow
def test_sizes_that_are_symbols(fusing: Any) -> None:
    for name, program in PROGRAMS.items():
        jitted = fusing(program, dynamic=True)
        for size in SIZES:
            given = _values(torch.bfloat16 if size % 2 else torch.int64, 3, size)
            for found, expected in zip(jitted(*given), program(*given), strict=True):
                torch.testing.assert_close(found, expected, equal_nan=True, msg=name)


def _chosen(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return torch.where(m, x * 2, x + 1)


def test_a_bool_may_be_any_byte(fusing: Any) -> None:
    bytes_ = torch.tensor([0, 1, 2, 128, 255] * 7, dtype=torch.uint8)
    x = torch.arange(35.0)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        given = x.to(dtype), bytes_.view(torch.bool)
        assert torch.equal(fusing(_chosen)(*given), _chosen(*given))


KERNEL = (
    'extern "C"  void  kernel(const bool* in_ptr0, bool* out_ptr0, float* out_ptr1)\n{\n%s\n}\n'
)

SPELLINGS = {
    "at::vec::VecMask<float,1>::from(in_ptr0 + x0, 8)": "mask_of<float, 1>(in_ptr0 + x0, 8)",
    "at::vec::VecMask<float,1>::from(in_ptr0, 8)": "mask_of<float, 1>(in_ptr0, 8)",
    "at::vec::VecMask<float,2>::from(tmpbuf.data(), 8)": "mask_of<float, 2>(tmpbuf.data(), 8)",
    "at::vec::VecMask<int64_t,2>::from<int64_t,2>(tmp1)": "mask_of<int64_t, 2>(tmp1)",
    "tmp1.store(out_ptr0 + x0, 8)": "store_of(tmp1, out_ptr0 + x0, 8)",
    "tmp1.to<at::BFloat16,1>()": "ones_of<at::BFloat16>(tmp1)",
    "at::vec::VectorizedN<int64_t,2>::loadu(in_ptr2 + x0, 8)":
        "load_of<at::vec::VectorizedN<int64_t,2>>(in_ptr2 + x0, 8)",
    "t.template cast<float,2>().template loadu<at::Half,1>(in_ptr2)":
        "masked_load_of<at::Half>(t.template cast<float,2>(), in_ptr2)",
    "at::vec::convert<int8_t>(tmp0)": "bytes_of<int8_t>(tmp0)",
}  # fmt: skip

LEFT = (
    "at::vec::VecMask<float,1>::from(tmp3)",
    "at::vec::VecMask<float,1>::from(0)",
    "at::vec::VecMask<float,1>::from<double,2>(tmp3)",
    "at::vec::Vectorized<float>::loadu(in_ptr2 + x0, 8)",
    "tmp1.store(out_ptr1 + x0, 8)",
    "tmp1.to<float,1>()",
    "at::vec::convert<float>(tmp0)",
)


def test_what_is_replaced() -> None:
    for text, becomes in SPELLINGS.items():
        made = with_fast_loads(KERNEL % f"{text};")
        assert f"{becomes};" in made, text
        assert made.count("ones_of(const") == 1
    for text in LEFT:
        assert with_fast_loads(KERNEL % f"{text};") == KERNEL % f"{text};"

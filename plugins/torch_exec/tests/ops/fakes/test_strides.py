"""Strides of fake tensors equal those of kernels, also in dimensions of size one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tj_conformance.oracle.compare import assert_jits
from tj_torch.ops.fakes.modes import decompositions, fake_mode
from torch.nn import functional as F

Shape = list[int]


def shapes_of(count: int, draw: random.Random) -> Shape:
    """Random sizes whose product is ``count``, with ones at any position."""
    sizes: Shape = [1] * draw.randint(0, 1)
    while count > 1:
        sizes.append(draw.choice([k for k in range(1, count + 1) if count % k == 0]))
        count //= sizes[-1]
        sizes += [1] * draw.randint(0, 1)
    return sizes


def strided(draw: random.Random) -> torch.Tensor:
    """Tensor with dimensions in random order, and random strides where the size is one."""
    sizes = [draw.choice([1, 1, 2, 3, 4]) for _ in range(draw.randint(0, 4))]
    order = draw.sample(range(len(sizes)), len(sizes))
    x = torch.randn(sizes).permute(order)
    strides = [
        draw.choice([1, 5, 7, t]) if s == 1 else t for s, t in zip(x.shape, x.stride(), strict=True)
    ]
    return x.as_strided(x.shape, strides)


def views(count: int) -> Iterator[tuple[torch.Tensor, Shape, torch.Tensor]]:
    draw = random.Random(0)
    for _ in range(count):
        x = strided(draw)
        shape = shapes_of(x.numel(), draw)
        try:
            yield x, shape, x.view(shape)
        except RuntimeError:  # no view has this shape
            continue


@pytest.mark.slow
def test_views() -> None:
    found = 0
    for x, shape, view in views(600):
        found += 1
        with fake_mode() as mode:
            assert mode.from_tensor(x).view(shape).stride() == view.stride(), (x.stride(), shape)
    assert found > 400


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_views_without_elements(shape: tuple[int, int]) -> None:
    x = torch.empty_strided(shape, (1, 7))
    for other in (shape, (0,), (0, 1, 5)):
        with fake_mode() as mode:
            assert mode.from_tensor(x).view(other).stride() == x.view(other).stride()


def test_views_whose_sizes_are_symbols() -> None:
    """For a dimension whose size is one for all values of the symbols."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    x = torch.randn(1, 6, 4).transpose(1, 2)
    torch._dynamo.mark_dynamic(x, 2)
    with fake_mode(shapes=ShapeEnv()) as mode:
        fake = mode.from_tensor(x)
        fake = fake.view(1, 4, fake.shape[2], 1)
    assert tuple(map(int, fake.stride())) == x.view(1, 4, 6, 1).stride()


def expanded(count: int) -> Iterator[tuple[torch.Tensor, Shape]]:
    draw = random.Random(1)
    for _ in range(count):
        x = strided(draw)
        same = [s if s > 1 else draw.choice([1, 1, 3, -1]) for s in x.shape]
        yield x, [draw.choice([1, 1, 2]) for _ in range(draw.randint(0, 2))] + same


@pytest.mark.slow
def test_expansions() -> None:
    """By PyTorch's fake kernel, and by the one for symbolic sizes."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    differ = 0
    for x, shape in expanded(300):
        expected = x.expand(shape).stride()
        with fake_mode() as mode:
            assert mode.from_tensor(x).expand(shape).stride() == expected
        with fake_mode(shapes=ShapeEnv()) as mode:
            fake, one = mode.from_tensor(x), mode.from_tensor(torch.ones(7, 1)).shape[1]
            found = fake.expand([one if s == 1 else s for s in shape])
        assert tuple(map(int, found.stride())) == expected, (x.stride(), shape)
        differ += 1 in shape
    assert differ > 100


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_group_norm_keeps_a_memory_format(dims: int, count: int) -> None:
    layout = (torch.channels_last, torch.channels_last_3d)[dims - 2]
    x = torch.randn(count, 4, *[6, 5, 3][:dims]).contiguous(memory_format=layout)
    norm = torch.nn.GroupNorm(2, 4)
    with fake_mode() as mode:
        assert norm(mode.from_tensor(x)).stride() == norm(x).stride()


@pytest.mark.parametrize("symbols", [False, True], ids=["fixed", "symbols"])
@pytest.mark.parametrize("count", [1, 2])
def test_unpooling_keeps_a_memory_format(count: int, symbols: bool) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    x = torch.randn(count, 3, 4, 6).contiguous(memory_format=torch.channels_last)
    pooled, index = F.max_pool2d(x, 2, return_indices=True)
    for t in (pooled, index):
        torch._dynamo.mark_dynamic(t, 1)
    with fake_mode(shapes=ShapeEnv() if symbols else None) as mode:
        found = F.max_unpool2d(*map(mode.from_tensor, (pooled, index)), 2)
    assert tuple(map(int, found.stride())) == F.max_unpool2d(pooled, index, 2).stride()


@pytest.mark.parametrize("turn", [(1, 1), (-1, -1), ((1, 2), (0, 1)), (0, 0), (1, None)])
def test_what_is_rolled_keeps_a_memory_format(turn: tuple[Any, Any]) -> None:
    shifts, dims = turn
    last = {"memory_format": torch.channels_last}
    given = [torch.randn(2, 3, 4, 5).to(**last), torch.randn(2, 3, 4, 1).to(**last)]
    given += [torch.randn(2, 3, 4, 5), torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0)]
    for x in given:
        with fake_mode() as mode:
            found = torch.roll(mode.from_tensor(x), shifts, dims)
        assert found.stride() == torch.roll(x, shifts, dims).stride()


FIRST = torch.tensor([0])

WRITTEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "index_put": lambda v: v.index_put((FIRST,), torch.ones(v.shape[1:])),
    "index_add": lambda v: v.index_add(0, FIRST, torch.ones_like(v[:1])),
    "index_copy": lambda v: v.index_copy(0, FIRST, torch.ones_like(v[:1])),
    "renorm": lambda v: v.renorm(2, 0, 1.0),
    "fill": lambda v: torch.ops.aten.fill.Scalar(v, 1),
    "isin": lambda v: torch.isin(v, torch.ones(2)),
    "isin, a number": lambda v: torch.isin(v, 1.0),
}

PARTS = (
    torch.randn(8, 8)[3:4, 2:],
    torch.randn(8, 8)[5:6, 6:7],
    torch.randn(8, 8).t()[4:5],
    torch.randn(8, 8).t()[:, 4:5],
    torch.randn(8, 8).t(),
    torch.randn(2, 4, 8).transpose(0, 1)[1:2],
    torch.randn(2, 1, 4, 8).contiguous(memory_format=torch.channels_last),
)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_at_indices_has_the_strides_of_kernels(name: str) -> None:
    for x in PARTS:
        with fake_mode() as mode:
            found = WRITTEN[name](mode.from_tensor(x))
        assert found.stride() == WRITTEN[name](x).stride(), (x.shape, x.stride())


@pytest.mark.parametrize("dim", [(), None, (0,), (0, 1)])
def test_a_sum_over_no_dimensions_is_one_over_all(dim: tuple[int, ...] | None) -> None:
    x = torch.randn(2, 3)
    with fake_mode() as mode:
        found = torch.nansum(mode.from_tensor(x), dim=dim)
    assert found.shape == torch.nansum(x, dim=dim).shape


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_unique_parts_lie_along_their_dimension(dim: int) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    y = torch.randint(0, 2, (3, 4, 5))
    for x in (y, y.permute(2, 0, 1)):
        for unique in (torch.unique, torch.unique_consecutive):
            with fake_mode(shapes=ShapeEnv()) as mode:
                found = unique(mode.from_tensor(x), dim=dim)
            eager = unique(x, dim=dim)
            order = sorted(range(3), key=eager.stride)
            assert found.stride(order[0]) == 1
            assert found.stride(order[1]) == found.shape[order[0]]


def test_unique_elements_have_one_dimension() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    x = torch.randint(0, 2, (3, 4))
    for asked in ({}, {"return_inverse": True}, {"return_counts": True}, {"dim": None}):
        with fake_mode(shapes=ShapeEnv()) as mode:
            found = torch.unique_consecutive(mode.from_tensor(x), **asked)
        values = found[0] if isinstance(found, tuple) else found
        assert values.ndim == 1


@pytest.mark.parametrize("function", [F.channel_shuffle, F.group_norm])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_channels_keep_a_memory_format(
    layout: torch.memory_format, function: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    x = torch.randn(2, 6, 3, 4).contiguous(memory_format=layout)
    for groups in (2, 3):
        with fake_mode() as mode:
            found = function(mode.from_tensor(x), groups)
        assert found.stride() == function(x, groups).stride()


POINTWISE = {
    "number": lambda x: x / 2.0,
    "comparison": lambda x: x > 0,
    "tensor without dimensions": lambda x: torch.where(x > 0, x, 0.0),
    "one operand": lambda x: -x,
    "two operands": lambda x: x * x.contiguous(),
    "empty_like": torch.empty_like,
    "empty_like in a format": lambda x: torch.empty_like(x, memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_operations_on_what_was_transposed(name: str) -> None:
    x = torch.randn(1, 36, 4).transpose(1, 2).view(1, 4, 6, 6)
    assert x.stride() == (4, 1, 24, 4)
    with fake_mode() as mode:
        assert POINTWISE[name](mode.from_tensor(x)).stride() == POINTWISE[name](x).stride()


ELEMENTWISE = {
    "one": lambda x, y: x.sin(),
    "one of two": lambda x, y: x + x.detach(),
    "two": lambda x, y: x * y,
    "three": lambda x, y: torch.where(x > 0, x, y),
    "a number": lambda x, y: x * 2,
    "a number that the kernel has": lambda x, y: x**2,
    "a number for two": lambda x, y: torch.lerp(x, y, 0.5),
    "a tensor without dimensions": lambda x, y: x.clamp_min(torch.tensor(0.5)),
    "a copy": lambda x, y: x.clone(),
    "a limit": lambda x, y: torch.nn.functional.hardtanh(x),
    "a gradient": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.5),
    "integers": lambda x, y: x.long() / y.long(),
    "a triangle": lambda x, y: x.tril() if x.ndim > 1 else x.cos(),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_operations_on_dimensions_of_size_one(name: str) -> None:
    """Kernels take what seems contiguous for contiguous; formulas keep strides of arguments."""
    draw, found = random.Random(0), ELEMENTWISE[name]
    for _ in range(40):
        x = strided(draw)
        y = draw.choice([torch.ones_like(x), torch.ones(x.shape), x + 0])
        with fake_mode() as mode:
            fakes = mode.from_tensor(x), mode.from_tensor(y)
            got = found(*fakes)
        assert got.stride() == found(x, y).stride(), (x.shape, x.stride(), y.stride())


def copied(count: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Tensors as `strided` makes them, of which some have gaps, overlap or are empty."""
    draw = random.Random(1)
    for _ in range(count):
        x = strided(draw)
        sizes = [draw.choice([n, n, n, 1, 0]) for n in x.shape]
        strides = [t * draw.choice([1, 1, 2, 0]) for t in x.stride()]
        needed = 1 + sum((n - 1) * t for n, t in zip(sizes, strides, strict=True) if n)
        yield torch.arange(max(needed, 1)).to(dtype).as_strided(sizes, strides)


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a cast to float32": lambda x: x.to(torch.float32, copy=True),
    "a cast to float64": torch.Tensor.double,
    "a cast to bool": torch.Tensor.bool,
    "a cast in a memory format": lambda x: x.to(
        torch.float16, memory_format=torch.contiguous_format
    ),
    "clone": torch.clone,
    "a formula with a number": lambda x: torch.deg2rad(x.float()),
    "a formula with two ends": lambda x: F.hardtanh(x.double()),
    "numbers for no numbers": torch.nan_to_num,
    "empty_like": torch.empty_like,
    "zeros_like": torch.zeros_like,
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.int64),
    "full_like": lambda x: torch.full_like(x, 3),
    "rand_like": lambda x: torch.rand_like(x, dtype=torch.float32),
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint_like": lambda x: torch.randint_like(x, 5),
    "randint_like from a number": lambda x: torch.randint_like(x, 2, 5),
    "zeros_like in a memory format": lambda x: torch.zeros_like(
        x, memory_format=torch.contiguous_format
    ),
    "index_fill": lambda x: x.index_fill(-1, torch.zeros(0, dtype=torch.int64), 3),
    "flip": lambda x: x.flip(tuple(range(x.ndim))),
    "where of two types": lambda x: torch.where(x > 0, x, x.float()),
    "where of a bool": lambda x: torch.where(x > 0, x > 1, x.double()),
    "layer_norm": lambda x: F.layer_norm(x.double(), x.shape[-1:] or (1,)),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("name", COPIES)
def test_copies_and_what_is_made_alike(name: str, dtype: torch.dtype) -> None:
    run, found = COPIES[name], 0
    for x in copied(60, dtype):
        if name == "layer_norm" and (x.ndim == 0 or not x.numel()):
            continue
        found += 1
        with fake_mode() as mode:
            strides = run(mode.from_tensor(x)).stride()
        assert strides == run(x).stride(), (x.shape, x.stride())
    assert found > 20


@pytest.mark.parametrize("shape", [(0, 1), (3, 0, 1), (0, 4), (2, 1, 1)])
@pytest.mark.parametrize("given", list(itertools.product((False, True), repeat=2)), ids=str)
def test_norms_of_no_elements(shape: tuple[int, ...], given: tuple[bool, bool]) -> None:
    ones = torch.ones(shape[-1:])
    args = (list(shape[-1:]), *(ones if wanted else None for wanted in given), 1e-5)
    real = torch.native_layer_norm(torch.zeros(shape), *args)
    with fake_mode() as mode, decompositions(True):
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        found = torch.native_layer_norm(mode.from_tensor(torch.zeros(shape)), *fakes)
    assert [value.stride() for value in found] == [value.stride() for value in real]


def test_strides_that_the_program_reads() -> None:
    def f(x: Any) -> Any:
        y = x.transpose(1, 2).view(1, 4, 3, 2)
        return y, y.stride(), y.view(2, 2, 1, 3, 2).stride()

    assert_jits(f, torch.randn(1, 6, 4))


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_dropout_that_drops_nothing_returns_what_it_is_given(p: float) -> None:
    """PyTorch's decomposition copies, so that Python would see the strides of a copy."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = torch.nn.functional.dropout(x[:, 0], p, training=True)
        return y, y.stride(0)

    assert_jits(program, torch.rand(2, 5, 8))


def gradients_of_convolutions(count: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tangent, input and weight of convolutions in two dimensions, laid out at random."""
    draw = random.Random(2)

    def laid(*sizes: int) -> torch.Tensor:
        last = draw.random() < 0.5
        x = torch.randn(sizes)
        return x.contiguous(memory_format=torch.channels_last) if last else x

    for _ in range(count):
        n, channels, others = (draw.choice([1, 2, 4]) for _ in range(3))
        kernel = [draw.choice([1, 1, 3]) for _ in range(2)]
        sizes = [5 - k + 1 for k in kernel]
        yield laid(n, others, *sizes), laid(n, channels, 5, 5), laid(others, channels, *kernel)


def test_gradients_of_convolutions() -> None:
    """Weights with one element per channel have a single memory format."""
    operator, pairs = torch.ops.aten.convolution_backward.default, [[1, 1], [0, 0], [1, 1]]
    seen = set()
    for given in gradients_of_convolutions(120):
        rest = ([given[0].shape[1]], *pairs, False, [0, 0], 1, [True] * 3)
        try:
            expected = operator(*given, *rest)
        except RuntimeError:  # "grad_weight must be contiguous"
            continue
        with fake_mode() as mode:
            found = operator(*map(mode.from_tensor, given), *rest)
        assert [t.stride() for t in found] == [t.stride() for t in expected], given
        seen.add(expected[1].stride()[2:] == (1, 1))
    assert seen == {False, True}


ROWS = torch.randn(6, 4, 5)
PICTURES = torch.randn(6, 4, 5, 3)
LAST = PICTURES.contiguous(memory_format=torch.channels_last)
LAYOUTS = {
    "rows": ROWS,
    "columns": ROWS.transpose(1, 2),
    "with gaps": torch.randn(6, 4, 10)[..., ::2],
    "pictures": PICTURES,
    "channels_last": LAST,
    "transposed": PICTURES.transpose(2, 3),
}


def normed(x: torch.Tensor, training: bool = True) -> torch.Tensor:
    statistics = [torch.ones(x.shape[1]) for _ in range(2)]
    return torch.nn.functional.batch_norm(x, *statistics, training=training)


SYMBOLIC = {
    "batch norm": normed,
    "batch norm in evaluation": lambda x: normed(x, False),
    "gradient of a batch norm": lambda x: torch.ops.aten.native_batch_norm_backward(
        x, x, None, None, None, *[torch.ones(x.shape[1])] * 2, True, 1e-5, [True, False, False]
    )[0],
    "of two layouts": lambda x: torch.xlogy(x, x.contiguous()),
    "of two layouts, the first contiguous": lambda x: torch.xlogy(x.contiguous(), x),
    "gradient of elu": lambda x: torch.ops.aten.elu_backward(
        x.contiguous(), 1.0, 1.0, 1.0, False, x
    ),
    "loss": lambda x: torch.nn.functional.binary_cross_entropy(
        x.sigmoid(), x.contiguous().sigmoid(), reduction="none"
    ),
    "gradient of a loss": lambda x: torch.ops.aten.binary_cross_entropy_backward(
        x.contiguous(), x.sigmoid(), x.contiguous().sigmoid(), None, 0
    ),
    "gradient of a softmax": lambda x: torch.ops.aten._log_softmax_backward_data(x, x, 1, x.dtype),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SYMBOLIC)
def test_sizes_that_are_symbols(name: str, layout: str) -> None:
    """The first size is a symbol, and stays one: nothing asks what it is."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    x, shapes = LAYOUTS[layout], ShapeEnv()
    dims = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (x.ndim - 1)
    with fake_mode(shapes=shapes) as mode:
        context = StatelessSymbolicContext(dims)  # type: ignore[call-arg]
        found = SYMBOLIC[name](mode.from_tensor(x, symbolic_context=context))
    assert not isinstance(found.shape[0], int)
    assert tuple(map(int, found.stride())) == SYMBOLIC[name](x).stride()


def test_a_batch_norm_of_columns() -> None:
    """Its expansion calls another operator than Python does."""
    norm = torch.nn.BatchNorm1d(5)
    assert_jits(lambda x: norm(x.transpose(1, 2)) * 2, ROWS)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32], ids=str)
def test_angles(dtype: torch.dtype) -> None:
    for x in (torch.randn(6, 4, dtype=dtype).t(), torch.randn(2, 3, 4, dtype=dtype).mT):
        with fake_mode() as mode:
            found = mode.from_tensor(x).angle().stride()
        assert found == x.angle().stride()


def with_gaps(draw: random.Random, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Ones in random order, expanded, or at overlapping places; a dimension may be broadcast."""
    sizes = list(shape)
    if draw.random() < 0.5:
        sizes[draw.randrange(len(sizes))] = 1
    order = draw.sample(range(len(sizes)), len(sizes))
    strides = [0] * len(sizes)
    for place, d in enumerate(order):
        strides[d] = 0 if draw.random() < 0.2 else draw.choice([1, 2, 5**place])
    return torch.empty_strided(sizes, strides, dtype=dtype).fill_(1)


CAST = {
    "add": torch.add, "comparison": torch.eq, "maximum": torch.maximum, "where":
    lambda x, y: torch.where(torch.ones_like(x, dtype=torch.bool), x, y),
    "logical_and": torch.logical_and, "logical_xor": torch.logical_xor,
    "heaviside": torch.heaviside, "logaddexp": torch.logaddexp, "xlogy": torch.xlogy,
    "copysign": torch.copysign, "division": torch.true_divide,
    "tanh": torch.ops.aten.tanh_backward, "silu": torch.ops.aten.silu_backward,
}  # fmt: skip


@pytest.mark.parametrize("types", ["float32", "float16", "bfloat16", "int64", "float32 float64"])
@pytest.mark.parametrize("name", CAST)
def test_elementwise_operations_on_what_has_gaps(name: str, types: str) -> None:
    """Fake kernels cast first what kernels do not, and the other way round."""
    draw, found = random.Random(0), CAST[name]
    compared = 0
    for _ in range(40):
        shape = [draw.choice([2, 3, 4]) for _ in range(draw.randint(2, 4))]
        dtypes = [getattr(torch, t) for t in (types.split() * 2)[:2]]
        x, y = (with_gaps(draw, shape, dtype) for dtype in dtypes)
        try:
            expected = found(x, y)
        except RuntimeError:  # no kernel for these types
            continue
        with fake_mode() as mode:
            got = found(mode.from_tensor(x), mode.from_tensor(y))
        sizes = expected.shape
        assert [s for s, n in zip(got.stride(), sizes, strict=True) if n > 1] == [
            s for s, n in zip(expected.stride(), sizes, strict=True) if n > 1
        ], (x.shape, x.stride(), y.shape, y.stride())
        compared += 1
    assert compared or types in ("int64", "float32 float64"), "an operation without kernels"

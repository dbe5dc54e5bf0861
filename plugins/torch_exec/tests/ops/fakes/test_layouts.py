"""Strides with symbolic sizes: for all sizes that guards let through, those of eager."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tj_torch.ops.fakes.modes import decompositions, fake_mode

Program = Callable[[torch.Tensor], torch.Tensor]

STEPS: dict[str, Program] = {
    "function": torch.sin,
    "number": lambda x: x * 2,
    "predicate": lambda x: (x > 0).double() + x,
    "choice": lambda x: torch.where(x > 0, x, 0.5),
    "transposed": lambda x: x.transpose(0, 1),
    "moved": lambda x: x.movedim(0, -1),
    "new dimension": lambda x: x[:, None].sum(1),
    "part": lambda x: x[..., ::2],
    "rest": lambda x: x[1:],
    "row": lambda x: x[..., :1],
    "sum": lambda x: x.sum(-1, keepdim=True),
    "sum beside": lambda x: x * x.sum(0, keepdim=True),
    "two layouts": lambda x: x + x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x.sum(1, keepdim=True).expand(x.shape),
    "joined": lambda x: torch.cat([x, x.cos()], 1),
    "rolled": lambda x: x.roll(1, -1),
    "flipped": lambda x: x.flip(0),
    "sorted": lambda x: x.sort(0)[0],
    "new": torch.zeros_like,
    "product": lambda x: x.float() @ x.float().transpose(-1, -2),
}
SIZES = (0, 1, 2, 3, 5)


def permuted(shape: Sequence[int], order: Sequence[int]) -> torch.Tensor:
    """A tensor of ``shape`` whose dimensions are in memory in ``order``."""
    x = torch.randn([shape[d] for d in order])
    return x.permute([order.index(d) for d in range(len(order))])


def served(draw: random.Random, run: Program) -> Iterator[tuple[torch.Tensor, Sequence[int]]]:
    """Tensors of sizes that fit the guards of ``run``, and the declared strides of its results."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    rank = draw.choice([2, 3, 3, 4])
    traced = [draw.choice(SIZES) for _ in range(rank)]
    order = draw.sample(range(rank), rank)
    dims = [DimDynamic.DYNAMIC if n > 1 else DimDynamic.STATIC for n in traced]
    shapes = ShapeEnv()
    with fake_mode(shapes=shapes) as mode, decompositions(True):
        context: Any = StatelessSymbolicContext(dims)
        fake = mode.from_tensor(permuted(traced, order), symbolic_context=context)
        found = run(fake)
    for sizes in itertools.product((2, 3, 5, 7), repeat=rank):
        x = permuted([n if t > 1 else t for n, t in zip(sizes, traced, strict=True)], order)
        pairs = [
            pair
            for mine, theirs in ((fake.shape, x.shape), (fake.stride(), x.stride()))
            for pair in zip(mine, theirs, strict=True)
        ]
        values = {
            n.node.expr: m for n, m in pairs if not isinstance(n, int) and n.node.expr.is_Symbol
        }
        if all(value(n, values) == m for n, m in pairs) and all(
            bool(guard.expr.xreplace(values)) for guard in shapes.guards
        ):
            yield x, tuple(value(n, values) for n in found.stride())


def value(size: Any, values: dict[Any, int]) -> int:
    return size if isinstance(size, int) else int(size.node.expr.xreplace(values))


def assert_served(draw: random.Random, names: Sequence[str]) -> int:
    """Compare one program for all sizes that fit its guards; return the number of sizes."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = STEPS[name](x)
        return x

    count = 0
    try:
        for x, strides in served(draw, run):
            assert run(x).stride() == strides, (names, x.shape, x.stride())
            count += 1
    except (IndexError, RuntimeError, ZeroDivisionError):  # no program for this number of sizes
        pass
    return count


@pytest.mark.parametrize("first", STEPS)
def test_programs_with_symbols(first: str) -> None:
    """Of one, two and three steps."""
    draw, count = random.Random(first), 0
    for length in (0, 1, 1, 1, 2, 2, 2, 2):
        count += assert_served(draw, [first, *draw.choices([*STEPS], k=length)])
    assert count > 20


@pytest.mark.parametrize(("shape", "order"), [((3, 1, 4), (1, 0, 2)), ((2, 7, 1), (2, 0, 1))])
def test_a_size_of_one_beside_symbols(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    """A tensor that fills its memory is added with its strides, also where their size is one."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    x = permuted(shape, order)
    torch._dynamo.mark_dynamic(x, shape.index(max(shape)))
    with fake_mode(shapes=ShapeEnv()) as mode:
        found = mode.from_tensor(x) * 2
    assert not all(isinstance(n, int) for n in found.shape)
    assert tuple(map(int, found.stride())) == (x * 2).stride()


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0)])
@pytest.mark.parametrize("symbols", [False, True], ids=["fixed", "symbols"])
def test_sums_without_elements(shape: tuple[int, int], symbols: bool) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    for x in (torch.randn(shape), torch.randn(shape[::-1]).t()):
        for dim, run in itertools.product((0, 1), (torch.sum, torch.prod, torch.any)):
            with fake_mode(shapes=ShapeEnv() if symbols else None) as mode, decompositions(symbols):
                found = run(mode.from_tensor(x), dim, keepdim=True)  # type: ignore[operator]
            assert found.stride() == run(x, dim, keepdim=True).stride()  # type: ignore[operator]


@pytest.mark.parametrize("length", [1, 3])
def test_attention_keeps_the_strides_of_the_query(length: int) -> None:
    x = torch.randn(1, length, 2, 8).transpose(1, 2)
    with fake_mode() as mode:
        fake = mode.from_tensor(x)
        found = torch.nn.functional.scaled_dot_product_attention(fake, fake, fake)
    expected = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert found.stride() == expected.stride()

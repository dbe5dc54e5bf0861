"""Made-up programs that write parts of a matrix with what they read from other parts of it."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

FULL = os.environ.get("TJ_FULL") == "1"
TOGETHER = 6
"""Number of programs in one function, so that the C++ compiler runs once for all."""

STARTS = (
    "v = a",
    "v = a + 1",
    "v = a.clone()",
    "v = a.cumsum(0) % 23",
    "v = a.sort(0).values",
    "v = (a @ a) % 19",
)
SHARED = (
    "v = (a + 1)[0].expand(8, 8)",
    "v = a.cumsum(0)[:, :1].expand(8, 8)",
    "v = (a % 7).view(-1).unfold(0, 8, 3)[:8]",
    "v = (a * 2).view(-1).as_strided((8, 8), (2, 1), 3)",
)
"""Values whose elements share memory, to which eager does not write in place."""

PARTS = (
    "v", "v[1:]", "v[:-1]", "v[::2]", "v[1::2]", "v[:4]", "v[4:]", "v[2:6]", "v[:, 1:]",
    "v[:, :-1]", "v[0]", "v[1]", "v[:, 0]", "v[:, 3]", "v.t()", "v[:4, :4]", "v[4:, 4:]",
    "v.diagonal()", "v[2:6, 1:5]", "v[3:7, 2:6]", "v.view(4, 16)[1]", "v.view(-1)[3:19]",
    "v.view(-1)[5:21]", "v.unfold(0, 4, 1)[0]", "v.view(16, 4)[:4]",
)  # fmt: skip
VALUES = (
    "{}.clone()", "({} + 1)", "({} * 2)", "{}.contiguous()", "{}.detach().clone()",
    "torch.roll({}, 1, -1)", "{}.flip(-1)", "{}.cumsum(-1)",
)  # fmt: skip
ROWS = ("v[:2]", "v[2:4]", "v[1:3]", "v[:2].clone()", "v[::4]", "(v[:2] + 1)", "v[-2:].clone()")
PLACES = (
    "torch.tensor([1, 0])", "torch.tensor([2, 2])", "torch.tensor([7, 3])", "v[:2, 0].long() % 8"
)  # fmt: skip
AT_PLACES = (
    "v = v.index_copy(0, {i}, {rows})",
    "v = v.index_add(0, {i}, {rows})",
    "v = v.index_put(({i},), {rows}, accumulate=True)",
    "v.index_copy_(0, {i}, {rows})",
    "v.index_add_(0, {i}, {rows})",
    "v[{i}] += {rows}",
    "v = v.scatter_add(0, v[:2].long() % 8, {rows})",
    "v = v.slice_scatter({rows}, 0, 1, 3)",
    "v = v.select_scatter({rows}[0], 0, 2)",
    "v = v.diagonal_scatter(v[3])",
    "v = v.masked_scatter(v > 20, {rows}.expand(4, -1, -1))",
    "v = torch.where(v > 9, v.t(), v)",
    "v = v.index_fill(0, {i}, 3)",
    "v = v.put({i}, {rows}[0, :2])",
)
ENDS = ("return v", "return v * 2", "return v, v.sum()", "return v, a + v")


def statement(chance: random.Random) -> str:
    """A write to a part of the matrix ``v``."""
    if chance.random() < 0.4:
        value = chance.choice(VALUES).format(chance.choice(PARTS))
        return f"{chance.choice(PARTS)}.copy_({value})"
    rows, places = chance.choice(ROWS), chance.choice(PLACES)
    return chance.choice(AT_PLACES).format(i=places, rows=rows)


def programs(seed: int) -> list[tuple[str, Callable[[torch.Tensor], Any], torch.Tensor]]:
    """`TOGETHER` programs that eager runs, each with its text and its matrix ``[8, 8]``."""
    chance, found = random.Random(seed), []
    while len(found) < TOGETHER:
        writes = [statement(chance) for _ in range(chance.randint(1, 3))]
        # A write in place to what shares memory has no defined result.
        pure = all(line.startswith("v = ") for line in writes)
        start = chance.choice(SHARED if pure and chance.random() < 0.5 else STARTS)
        lines = [start, *writes, chance.choice(ENDS)]
        text = "def program(a):\n    " + "\n    ".join(lines)
        names: dict[str, Any] = {"torch": torch}
        exec(text, names)
        whole = torch.arange(64).view(8, 8) * chance.choice([3, 5, 7]) % 11 + 1
        given = whole.to(chance.choice([torch.float32, torch.float64, torch.int64]))
        try:
            names["program"](given.clone())
        except (RuntimeError, IndexError, NotImplementedError):  # sizes or types do not fit
            continue
        found.append((text, names["program"], given))
    return found


def both(found: Any) -> tuple[torch.Tensor, ...]:
    """The results of a program as a tuple."""
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("seed", range(60 if FULL else 1))
def test_parts_are_read_before_they_are_written(fusing: Any, seed: int) -> None:
    made = programs(seed)

    def run(*given: torch.Tensor) -> list[Any]:
        return [program(x) for (_, program, _), x in zip(made, given, strict=True)]

    mine, eager = ([x.clone() for *_, x in made] for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        found = fusing(run, {"minimum": 1})(*mine)
    for (text, *_), got, expected, x, y in zip(made, found, run(*eager), mine, eager, strict=True):
        for a, e in zip((*both(got), x), (*both(expected), y), strict=True):
            assert (a.dtype, a.stride()) == (e.dtype, e.stride()), text
            torch.testing.assert_close(a, e, msg=lambda said, text=text: f"{said}\n{text}")

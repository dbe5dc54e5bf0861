"""Indices of several items with a number that differs between calls: one program for all."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager

pytestmark = pytest.mark.usefixtures("lenient", "forgotten")

INDICES = [
    ":, p", "p, :", "..., p", "p, p", "None, p", "p, None", "1:, p", "::2, p, 0", "0, p",
    ":, p, 1:", "-1, ..., p", "p, ..., None, 1", "..., p, :", ":, :, p", "p, 1, p",
    "..., None, p, None", "p, ...", "p - 1, p", ":p, p", "p:, ..., p",
]  # fmt: skip

READS = """
x = torch.arange(60.0).view(3, 4, 5)
w = torch.ones(3, 4, 5, requires_grad=True)
def f(x, p):
    view = x[INDEX]
    return view, view * 2, view.stride(), view.storage_offset(), view._is_view(), view.shape
def g(p):
    (f(w, p)[1].sin().sum() * 3).backward()
    return w.grad
"""

WRITES = """
x = torch.arange(60.0).view(3, 4, 5)
def f(x, p):
    STATEMENT
    return x.sum(-1)
def g(p):
    y = x.clone()
    return f(y, p), y, y._version
"""

STATEMENTS = [
    "x[INDEX] = 3.5",
    "x[INDEX] = p",
    "x[INDEX] = x[INDEX] * 2",
    "x[INDEX] = torch.ones(1, 1, 1)",
    "x[INDEX] = torch.tensor(7)",
    "x[INDEX] = x[INDEX].double() + p",
    "x[INDEX] += 1",
    "x[INDEX].mul_(2)",
    "v = x[INDEX]; v[...] = 1; x.add_(1)",
]

VALUES = (0, 1, 2, -1, 3, 7, 1, -5)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("gradient", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("index", INDICES)
def test_reads(index: str, gradient: bool) -> None:
    text = READS.replace("INDEX", index)
    calls = [f"g({p})" if gradient else f"f(x, {p})" for p in VALUES]
    equal_to_eager(text, *calls)()


@pytest.mark.sampled(40)
@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("index", INDICES)
def test_writes(index: str, statement: str) -> None:
    text = WRITES.replace("STATEMENT", statement).replace("INDEX", index)
    equal_to_eager(text, *(f"g({p})" for p in VALUES))()


@pytest.mark.parametrize("index", [":, p", "0, p", "..., p", "1:, p"])
def test_one_program_for_all_numbers(index: str) -> None:
    scope = {"torch": torch}
    exec(WRITES.replace("STATEMENT", "x[INDEX] = 1; x[INDEX] *= 2").replace("INDEX", index), scope)
    f, x = tj.jit(scope["f"]), torch.rand(8, 9, 7)
    for p in range(7):
        f(x, p)
    assert tj.stats(f).entries <= 3


CACHE = """
class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 16, 3))
        self.place, self.calls = 0, 0
    def forward(self, x):
        self.keys[:, self.place] = x
        self.place = (self.place + 1) % 16
        self.calls += 1
        return (self.keys[:, : self.place] * 2).sum(1) + self.calls
cache = Cache()
x = torch.arange(6.0).view(2, 3)
def f(x):
    return cache(x)
"""


def test_whole_numbers_of_modules() -> None:
    calls = [f"f(x + {n})" for n in range(19)]
    equal_to_eager(CACHE, *calls, "(cache.place, cache.calls, cache.keys)")()


def test_a_module_has_few_programs() -> None:
    scope = {"torch": torch}
    exec(CACHE, scope)
    jitted = tj.jit(scope["cache"])
    for _ in range(12):
        jitted(torch.rand(2, 3))
    assert tj.stats(jitted).entries <= 4
    assert tj.stats(jitted).eager == 0

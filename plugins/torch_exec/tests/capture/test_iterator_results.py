"""Results of generators: of ``yield from``, the value of a StopIteration; reversed lists."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager

Given = Generator[Any, Any, Any]


def inner(x: torch.Tensor) -> Given:
    yield x
    return x + 10


def echo(x: torch.Tensor) -> Given:
    while (sent := (yield x)) is not None:
        x = x + sent


class Counting:
    def __init__(self) -> None:
        self.n = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.n += 1
        if self.n > 2:
            raise StopIteration(7)
        return self.n


def of_a_generator(x: torch.Tensor) -> Given:
    found = yield from inner(x)
    yield x if found is None else found * 2


def of_one_that_ended(x: torch.Tensor) -> Given:
    one = inner(x)
    first, second = (yield from one), (yield from one)
    yield first
    yield second is None


def of_a_list(x: torch.Tensor) -> Given:
    found = yield from [1, 2]
    other = yield from (i for i in (3, 4))
    yield x if found is other is None else 0


def of_an_iterator(x: torch.Tensor) -> Given:
    found = yield from Counting()
    yield x if found is None else x * found


def of_recursion(x: torch.Tensor, depth: int = 3) -> Given:
    if depth == 0:
        return x
    yield x * depth
    return 2 * (yield from of_recursion(x + 1, depth - 1))


def collected(x: torch.Tensor) -> Given:
    yield (yield from of_recursion(x))


def no_value(x: torch.Tensor) -> Given:
    one = echo(x)
    next(one)
    yield one.send(2)
    try:
        one.send(None)
    except StopIteration as error:
        yield error.value is None
        yield error.args


def a_value(x: torch.Tensor) -> Given:
    one = inner(x)
    next(one)
    try:
        next(one)
    except StopIteration as error:
        yield error.value is not None
        yield error.value + 1


def a_code(x: torch.Tensor) -> Given:
    try:
        raise SystemExit
    except SystemExit as error:
        yield x + 1 if error.code is None else x


PROGRAMS: tuple[Callable[[torch.Tensor], Given], ...] = (
    of_a_generator,
    of_one_that_ended,
    of_a_list,
    of_an_iterator,
    collected,
    no_value,
    a_value,
    a_code,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_results_are_those_of_python(program: Callable[[torch.Tensor], Given]) -> None:
    def f(x: torch.Tensor) -> list[Any]:
        return list(program(x))

    jitted = tj.jit(f)
    for i in range(2):
        x = torch.tensor([1.0, 2.0]) + i
        assert [_plain(v) for v in jitted(x)] == [_plain(v) for v in f(x)]


def test_results_are_captured() -> None:
    def f(x: torch.Tensor) -> list[Any]:
        return [*of_a_generator(x), *of_one_that_ended(x), *collected(x), *no_value(x)]

    x = torch.tensor([1.0, 2.0])
    found = tj.jit(f, strict=True)(x)
    assert [_plain(v) for v in found] == [_plain(v) for v in f(x)]


BACKWARDS = (
    "x * next(reversed(v))",
    "(x + 1, next(reversed(v[:0]), 9))",
    "(x + 1, (it := reversed(v)) and next(it), next(it), list(it), list(it))",
    "(x + 1, list(zip(reversed(v), v)), [*reversed(v)], sum(reversed(v)))",
    "(x + 1, reversed(v))",
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["[1, 2, 3]", "collections.deque([1, 2, 3])", "(1, 2, 3)"])
@pytest.mark.parametrize("body", BACKWARDS)
def test_what_is_reversed_is_an_iterator(body: str, kind: str) -> None:
    if "deque" in kind:
        body = body.replace("v[:0]", "collections.deque()")
    text = f"import collections\nv, x = {kind}, torch.ones(2)\ndef f(x): return {body}\n"
    text += (
        "def run(found):\n    last = found[-1]\n    return *found[:-1], type(last), list(last)\n"
    )
    call = "run(f(x))" if body.endswith("reversed(v))") else "f(x)"
    equal_to_eager(text, call, call)()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value

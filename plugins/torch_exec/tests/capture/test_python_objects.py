"""Objects of Python's library that newer versions of Dynamo trace, against eager."""

from __future__ import annotations

import collections
import contextvars
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tj_core as tj
import torch

X = torch.ones(3)

VALUE: contextvars.ContextVar[int] = contextvars.ContextVar("VALUE")


class Queue(collections.deque[int]):
    """Deque with an attribute."""

    seen = 0


def agree(f: Callable[..., Any], calls: Sequence[Callable[[], Any]]) -> None:
    """Check that ``f`` returns the same as in eager for the result of each of ``calls``."""
    torch._dynamo.reset()
    jitted = tj.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)  # some are run as acquired
        for call in calls:
            assert str(jitted(call())) == str(f(call()))


def test_a_context_variable_gets_a_value() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return x * VALUE.get()
        except LookupError:
            return x + 10

    def call(value: int) -> torch.Tensor:
        VALUE.set(value)
        return X

    calls = [lambda: X, lambda: call(3), lambda: call(4), lambda: call(3)]
    contextvars.copy_context().run(agree, f, calls)


def test_tensors_in_lists_however_they_are_asked_for() -> None:
    """The answer is a bool, and not what `==` returns."""

    def f(x: torch.Tensor) -> Any:
        parts = [x + 1, x]
        asked = operator.contains(parts, x), parts.__contains__(x), operator.contains(["a"], x)
        return *asked, operator.contains((x, 1), x), x in parts, x * 2

    agree(f, [lambda: torch.ones(1), lambda: torch.zeros(1)])


@pytest.mark.parametrize("bound", [None, 2, 3])
def test_a_deque_in_an_object(bound: int | None) -> None:
    def f(queue: Queue) -> Any:
        queue.append(5)
        queue.seen += 1
        return X * len(queue), list(queue), queue.maxlen, queue.seen, queue

    agree(f, [lambda: Queue([1, 2], bound), lambda: Queue([1], bound)])


REVERSED = pytest.mark.skipif(
    torch.__version__ < (2, 12), reason="PyTorch 2.10 and 2.11 take reversed() for a tuple"
)


@pytest.mark.parametrize("iterate", [iter, pytest.param(reversed, marks=REVERSED)])
def test_an_iterator_over_a_deque_is_returned(iterate: Callable[[Any], Any]) -> None:
    def f(given: Any) -> Any:
        found = iterate(given)
        return X + next(found), found

    torch._dynamo.reset()
    with pytest.warns(tj.TjWarning, match="iterator"):
        _, found = tj.jit(f)(collections.deque([1, 2, 3]))
    _, expected = f(collections.deque([1, 2, 3]))
    assert type(found) is type(expected)
    assert list(found) == list(expected)


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_integer_times_a_float_that_is_zero(dynamic: bool | None) -> None:
    def f(n: int) -> Any:
        zero = n * 0.0
        return X + 1, math.copysign(1, zero), X * zero

    torch._dynamo.reset()
    jitted = tj.jit(f, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for n in (5, 7, -7, 0, -1):
            assert str(jitted(n)) == str(f(n))


class Measured(list[int]):
    """A list that says another length than it has."""

    def __len__(self) -> int:
        return 100


def test_a_list_with_a_length_of_its_own_keeps_what_is_added() -> None:
    kept = Measured([1])

    def f(x: torch.Tensor) -> Any:
        kept.append(3)
        return x + len(kept), list(kept)

    with pytest.warns(tj.TjWarning, match="a length of its own"):
        jitted = tj.jit(f)
        found = [jitted(X)[1] for _ in range(3)]
    assert found == [[1, 3], [1, 3, 3], [1, 3, 3, 3]]

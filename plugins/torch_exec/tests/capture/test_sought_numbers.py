"""Numbers that differ between calls, as items of containers and in comparisons.

``2 in (n, 3)`` compares 2 with n, and ``(n > 2) is True`` asks for one of the two truth values.
"""

from __future__ import annotations

import pytest
from tj_torch.capture.eager_probe import captured_for_most, captured_whole, only_breaks

pytestmark = [pytest.mark.sampled(8), pytest.mark.usefixtures("lenient", "forgotten")]

CALLS = tuple(f"f(x, {a}, {b})" for a, b in ((1, 9), (3, 8), (2, 7), (9, 2), (4, 4), (7, 1)))

FOUND = (
    "2 in (n, m)",
    "2 not in [n, m]",
    "2.0 in (n, m)",
    "True in (n, m)",
    "(n, m).__contains__(2)",
    "operator.contains([n, m], 2)",
    "2 in deque([n, m])",
    "2 in Pair(n, m)",
    "2 in {'n': n, 'm': m}.values()",
    "('n', 2) in {'n': n, 'm': m}.items()",
    "(2, 7) in [(m, n), (n, m)]",
    "[7, 2] in ([m, n], 1)",
    "2 in torch.zeros(n, m).shape",
    "2 in (1, n * m // 9)",
)
ABSENT = (
    "None in (n, m)",
    "'n' in [n, m]",
    "None in {'n': n, 'x': x}.values()",
    "layer in [n, layer]",
    "2 in {'layer': layer, 'f': torch.relu}.values()",
)


@pytest.mark.parametrize("asked", [*FOUND, *ABSENT])
def test_an_item_that_is_a_symbol(asked: str) -> None:
    text = f"""
import operator
from collections import deque, namedtuple
Pair = namedtuple("Pair", "n m")
layer = torch.nn.Linear(2, 2)
x = torch.ones(2)
def f(x, n, m): return x + n - m, {asked}
"""
    captured_whole(text, *CALLS)


def test_sizes_and_floats() -> None:
    captured_whole(
        "def f(x): return x + (1 if 3 in x.shape else 2)",
        *(f"f(torch.ones({n}, {m}))" for n, m in ((2, 3), (4, 5), (3, 6), (7, 3), (8, 9))),
    )
    captured_whole(
        "def f(a, b): return torch.ones(2) * a, 2.5 in (a, b), 2 in [a, b]",
        *(f"f({a}, {b})" for a, b in ((1.5, 9.0), (0.5, 0.25), (2.0, 3.5), (7.0, 2.5))),
    )


ASKED = """
import operator
x = torch.ones(2)
def f(x, n, m): return x + n - m, {}
"""
"""A program that returns what it is asked."""

RANGES = (
    "n in range(2, 8)",
    "n not in range(5)",
    "3 in range(n, m)",
    "n in range(m, 0, -1)",
    "(n in range(5)) is True",
    "range(5).__contains__(n)",
    "operator.contains(range(5), n)",
    "(n + 0.5) in range(5)",
    "None in range(n)",
    "'n' in range(n)",
    "x[n in range(5)]",
    "3 in range(5)",
)


@pytest.mark.parametrize("asked", RANGES)
def test_a_range_answers_with_a_truth_value(asked: str) -> None:
    captured_whole(ASKED.format(asked), *CALLS)


TRUTHS = (
    "(n > 2) is True",
    "(n > 2) is not True",
    "True is (n > m)",
    "(n > m) is (m < n)",
    "(n > 2 and m > 2) is False",
    "bool(n > 2) is True",
    "operator.is_(n > 2, True)",
    "operator.is_not(n > 2, False)",
    "{'k': n > 2}['k'] is True",
    "[v is True for v in (n > 2, m > 2)]",
    "(n == 2) is True",
    "True in [n > 2, n > 8]",
    "(n in (1, 2)) is True",
    "(x.shape[0] > 2) is True",
    "(n > 2) is None",
)


@pytest.mark.parametrize("asked", TRUTHS)
def test_the_result_of_a_comparison_is_true_or_false(asked: str) -> None:
    text = ASKED.format(asked)
    captured_whole(text, *CALLS)
    floats = [call.replace(", ", ".5, ").replace("x.5", "x") for call in CALLS]
    captured_whole(text, *floats)


OF_DATA = (
    "2 in t.tolist()",
    "2 not in tuple(t.tolist())",
    "2 in (t[0].item(), int(t[1]))",
    "3 in range(t[0].item(), t[1].item())",
    "True in [(t[0] > 2).item()]",
    "(t > 2).any().item() is True",
    "bool(t[0] > 2) is True",
    "[(v > 2) is True for v in t.tolist()]",
    "(t[0].item() > 2) is (t[1].item() > 2)",
)
OF_SIZES = ("1 in t[t > 2].shape", "(t[t > 2].numel() == 2) is True")


CALLS_OF_DATA = tuple(
    f"f(torch.tensor([{a}, {b}]))" for a, b in ((1, 9), (3, 2), (2, 7), (4, 4), (9, 3))
)


@pytest.mark.parametrize("asked", OF_DATA)
def test_what_depends_on_data_breaks_the_graph(asked: str) -> None:
    only_breaks(f"def f(t): return t * 2, {asked}", *CALLS_OF_DATA)


@pytest.mark.parametrize("asked", OF_SIZES)
def test_what_depends_on_a_size_of_data_is_decided_for_most(asked: str) -> None:
    captured_for_most(f"def f(t): return t * 2, {asked}", *CALLS_OF_DATA)

"""Numbers and sizes that depend on data: conditions, indices, handlers, and the parts after."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import (
    captured_for_most,
    captured_whole,
    equal_to_eager,
    only_breaks,
)

CALLS = (
    "f(torch.ones(4, 3), torch.arange(4) < 2)",
    "f(torch.ones(4, 3), torch.arange(4) < 0)",
    "f(torch.ones(3, 3), torch.arange(3) < 3)",
)
"""Calls with a mask that is true for two, none and three rows."""

DECIDES = {
    "a number is large": "return x * 2 if int(m.sum()) > 1 else x",
    "a size is large": "return x * 2 if len(x[m]) > 2 else x",
    "a list": "return x * 2, x[m][:, 0].tolist()",
}

SIZES = {
    "a size is true": "v = x[m]\n return v.sin() if len(v) else v + 1",
    "no element": "v = x[m]\n if v.numel() == 0: return x\n return v.amax(0)",
    "a segment": "i = m.nonzero()[:, 0]\n"
    " n = int(i.max()) + 1 if i.numel() > 0 else 0\n"
    " return x.new_zeros(n, 3).index_add(0, i, x[i]).sum(0)",
    "the least of two sizes": "n = len(m.nonzero())\n return x * 2 if min(n, len(x)) else x",
}
"""Decisions that are alike for all sizes but the least."""

INDICES = {
    "a remainder": "n = int(m.sum())\n x = x * 1\n x[:, n % 2].zero_()\n return x",
    "a tensor beside a number": "return x[0, m.sum()] * 2",
    "a sum": "i = m.long().argmax()\n return x[i + 1, 0] * x[:, i + 1]",
    "a write": "x = x * 1\n i = m.sum()\n x[i, 1:] = x[0, i] + 1\n return x",
    "a gradient": "x = x.requires_grad_()\n return (x * 2)[..., m.sum()].sin()",
}
"""Indices of several items that depend on data; some are out of bounds."""


@pytest.mark.parametrize("body", DECIDES.values(), ids=list(DECIDES))
def test_the_graph_breaks_where_a_number_decides(body: str) -> None:
    only_breaks(f"def f(x, m):\n {body}", *CALLS)


@pytest.mark.parametrize("body", SIZES.values(), ids=list(SIZES))
def test_a_program_is_captured_for_all_sizes_but_the_least(body: str) -> None:
    captured_for_most(f"def f(x, m):\n {body}", *CALLS)
    captured_whole(f"def f(x, m):\n {body}", CALLS[0], CALLS[2])


@pytest.mark.parametrize("body", INDICES.values(), ids=list(INDICES))
def test_an_index_of_several_items_is_captured(body: str) -> None:
    text, more = f"def f(x, m):\n {body}", "f(torch.ones(4, 3), torch.arange(4) < 1)"
    equal_to_eager(text, *CALLS, more)()
    if "requires_grad_" not in body:
        captured_whole(text, *CALLS[:2], more)


def test_a_slice_of_nothing_is_captured() -> None:
    text = "def f(x, m):\n n = int(m.sum())\n return x[:n] * 2, x[n:].sum()"
    captured_whole(text, "f(torch.ones(0, 3), torch.arange(2) < 1)")


HANDLED = {
    "a quotient": ("v = x * (1 / n)", "ZeroDivisionError"),
    "a remainder": ("v = x * (3 % n)", "ArithmeticError"),
    "a power": ("v = x * n ** -1", "ZeroDivisionError"),
    "an index": ("v = x[n + 2]", "IndexError"),
    "a view": ("v = x.view(n, -1, 3)[0]", "RuntimeError"),
    "sizes that do not fit": ("v = x + x[m]", "RuntimeError"),
    "a square root": ("v = x * math.sqrt(n - 1)", "ValueError"),
}
"""Lines that raise for some of the `CALLS`, and the error."""


OF_PYTHON = ("ZeroDivisionError", "ArithmeticError", "ValueError")
"""Errors of numbers, which Python raises."""


@pytest.mark.sampled(7)
@pytest.mark.parametrize("number", ["int(m.sum())", "m.sum().item() - 1", "len(x[m])"])
@pytest.mark.parametrize(("line", "error"), HANDLED.values(), ids=list(HANDLED))
def test_a_handler_gets_the_error_of_a_number(line: str, error: str, number: str) -> None:
    text = (
        f"import math\ndef f(x, m):\n n = {number}\n try: {line}\n except {error}: return x * 5\n"
    )
    seen = only_breaks if error in OF_PYTHON else captured_for_most
    seen(f"{text} return v", *CALLS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("line", "error"), HANDLED.values(), ids=list(HANDLED))
def test_a_handler_gets_the_error_of_a_number_that_is_given(line: str, error: str) -> None:
    text = f"import math\ndef f(x, m, t):\n n = int(t)\n try: {line}\n except {error}: return x\n"
    calls = [call[:-1] + f", torch.tensor({n}))" for call in CALLS for n in (1, 0, 7)]
    equal_to_eager(f"{text} return v", *calls)()


def test_numbers_of_arguments_stand_beside_sizes_of_data() -> None:
    text = """
def f(x, t):
    v = torch.cat([x, x[x[:, 1] > 99]])
    return v.narrow(0, 0, min(int(t), len(v))) * 2
"""
    calls = ("f(torch.ones(3, 3), torch.tensor(2))", "f(torch.ones(5, 3), torch.tensor(9))")
    equal_to_eager(text, *calls)()
    captured_whole(text, calls[0])


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_parts_of_a_program_write_in_inference_mode(first: type) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if x.sum() > 0:
            x = x + 1
        v = x.clone()
        w = v[:2]
        w.mul_(3)
        return v, w

    jitted = tj.jit(program, session=tj.Session(["torch"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the graph break
        for mode in (first, torch.inference_mode, torch.no_grad):
            with mode():
                x = torch.ones(3)
                for found, expected in zip(jitted(x), program(x), strict=True):
                    assert torch.equal(found, expected)
                    assert found.is_inference() == expected.is_inference()
                    assert found._is_view() == expected._is_view()


ROW = """
import torch
x, i = torch.arange(6.).reshape(3, 2), torch.tensor([1, -1, 0, 7])
"""
ROWS = {
    "an element": "return x[i[k]] * 2",
    "the largest": "return x[i[:k + 1].max()] * 2",
    "of a loop": "return sum(x[n] * 2 for n in torch.arange(k + 1))",
    "two": "return x[i[k], i[0]] * 2",
    "written": "y = x + 1; y[i[k]] = 5.; return y",
    "a mask": "return x[i[k] > 0] * 2",
    "bytes": "return x[(i[k] > 0).to(torch.uint8)] * 2",
}


@pytest.mark.parametrize("name", ROWS)
def test_an_integer_that_is_computed_is_an_index(name: str) -> None:
    text = f"{ROW}def f(k):\n    {ROWS[name]}"
    calls = [f"f({k})" for k in (0, 1, 2, 3, 1)]
    equal_to_eager(text, *calls)()
    if name in ("an element", "the largest", "of a loop", "written"):
        captured_whole(text, "f(0)")


def first_column(v: torch.Tensor) -> None:
    v[:, 0].zero_()


def last_row_across(v: torch.Tensor) -> None:
    v.t()[2].fill_(3)


def each_third(v: torch.Tensor) -> None:
    v.view(-1)[::3].zero_()


@pytest.mark.parametrize("write", [first_column, last_row_across, each_third])
def test_columns_of_no_row_are_written(write: Callable[[torch.Tensor], None]) -> None:
    """Fake tensors with gaps assert that they have elements."""

    def program(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        v = x[m]
        write(v)
        return v.mul_(2)

    functional = tj.Session(["torch"], overrides={"torch": {"functional": "always"}})
    jitted = tj.jit(program, session=functional)
    x = torch.ones(4, 3)
    for count in (2, 0, 1):
        m = torch.arange(4) < count
        assert torch.equal(jitted(x, m), program(x, m))

"""Programs with handlers that are captured whole, and run as they are for some data."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import (
    captured_for_most,
    captured_whole,
    equal_to_eager,
    only_breaks,
)

pytestmark = pytest.mark.sampled(3)

CALLS = tuple(f"f(torch.arange(1.0, 5.0), torch.tensor({i}))" for i in ([0, 2], [1, 9], [3, 1]))
"""Calls with two indices; those of the second are out of bounds."""

HANDLED = """
import random
def f(x, i):
    try:
        {}
    except (IndexError, RuntimeError) as error:
        return x * 0
    return {}
"""

RUN = {
    "an index": ("y = x[i]", "y + 1"),
    "a write": ("y = x.clone(); y[i] = 3.0", "y"),
    "a segment": ("y = x.new_zeros(4).scatter_add_(0, i, x[:2])", "y.sin()"),
    "a segment that is divided": ("y = x.new_zeros(4).index_add(0, i, x[:2])", "y / len(y)"),
    "random numbers": ("y = x[i] + torch.rand(2)", "y * torch.rand(2)"),
    "an index of an index": ("y = x[i][i[:1] * 0]", "y"),
}
"""Statements that raise, and what is returned otherwise."""

LEFT_OUT = {
    "not used": ("x[i]", "x + 1"),
    "used once": ("y, z = x[i], x[i] * 2", "y"),
    "only its size": ("y = x[i]", "torch.ones_like(y)"),
    "only its size, made new": ("y = x[i]", "y.new_zeros(y.shape)"),
    "a view": ("x.view(int(i.sum()), -1)", "x + 1"),
}
"""Statements whose result no returned element depends on."""

WRITTEN = {
    "a write that is not used": ("torch.zeros(4).scatter_add_(0, i, x[:2])", "x + 1"),
    "overwritten": ("y = x.clone(); y[i] = 3.0", "y.zero_()"),
    "of what is given": ("x.add_(1); y = x[i]; x.mul_(2)", "y"),
}
"""The same, of a functional form; and what a second run would see."""

FUNCTIONAL = ("autograd", "torch")
"""Plugins with which programs are made functional."""


@pytest.mark.parametrize("name", RUN)
def test_a_handled_error_of_data_is_one_of_eager(name: str) -> None:
    text = HANDLED.format(*RUN[name])
    captured_for_most(text, *CALLS)
    captured_whole(text, CALLS[0], CALLS[2])
    train = [
        f"{c.replace('5.0)', '5.0, requires_grad=True).cos()')}.sum().backward()" for c in CALLS
    ]
    equal_to_eager(text, *train, plugins=FUNCTIONAL)()


@pytest.mark.parametrize("name", LEFT_OUT)
def test_the_graph_breaks_at_a_handled_call_that_nobody_needs(name: str) -> None:
    only_breaks(HANDLED.format(*LEFT_OUT[name]), *CALLS)
    equal_to_eager(HANDLED.format(*LEFT_OUT[name]), *CALLS, plugins=FUNCTIONAL)()


@pytest.mark.parametrize("plugins", [("torch",), FUNCTIONAL])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_handled_write_is_done_once(name: str, plugins: tuple[str, ...]) -> None:
    text = f"{HANDLED.format(*WRITTEN[name])}x = torch.arange(1.0, 5.0)"
    calls = (f"(f(x, torch.tensor({i})), x, x._version)" for i in ([0, 2], [1, 9], [3, 1]))
    equal_to_eager(text, *calls, plugins=plugins)()


def test_a_handler_is_run_after_what_was_written_is_undone() -> None:
    text = """
log, seen = [], torch.zeros(4)
def f(x, i):
    log.append(1)
    seen.add_(x)
    try:
        y = x[i]
    except IndexError:
        log.append(2)
        return seen * 2
    return y, seen + 1
"""
    only_breaks(text, *CALLS)  # not functional
    calls = [e for c in CALLS for e in (c, "(log, seen, seen._version)")]
    for plugins in (("torch",), FUNCTIONAL):
        equal_to_eager(text, *calls, plugins=plugins)()


SEEN = """
@torch.library.custom_op("tj_tests::noted", mutates_args=())
def noted(x: torch.Tensor) -> None:
    log.append(1)
noted.register_fake(lambda x: None)
log = []
def f(x, i):
    torch.ops.tj_tests.noted(x)
    try: y = x[i]
    except IndexError: return x * 0
    return y
"""


def test_the_graph_breaks_where_a_second_run_would_be_noticed() -> None:
    equal_to_eager(SEEN, *CALLS, "log")()
    only_breaks(SEEN, *CALLS)


def test_a_part_of_a_program_breaks_at_a_handled_call() -> None:
    text = HANDLED.format("torch._dynamo.graph_break(); y = x[i]", "y")
    only_breaks(text, *CALLS)


def called(program: Any, calls: list[Any], **options: Any) -> tuple[tj.Stats, list[str]]:
    """Statistics after ``calls``, whose results are eager's, and tj's warnings."""
    jitted = tj.jit(program, session=tj.Session(["torch"]), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, i in calls:
            assert torch.equal(jitted(x, i), program(x, i))
    own = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
    return tj.stats(jitted), own


def handled(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    try:
        return x[i] * 2
    except IndexError:
        return x


GOOD, BAD = ((torch.arange(4.0), torch.tensor([0, i])) for i in (1, 9))


def test_one_warning_names_the_line() -> None:
    stats, own = called(handled, [GOOD, BAD, GOOD, BAD])
    assert len(own) == 1
    assert "return x[i] * 2" in own[0]
    assert (stats.entries, stats.hits, stats.misses) == (1, 3, 1)


def test_rare_errors_leave_the_program_captured() -> None:
    stats, _ = called(handled, [*[GOOD] * 9, BAD] * 8)
    assert (stats.entries, len(stats.fallbacks)) == (1, 1)


def test_frequent_errors_make_the_graph_break() -> None:
    stats, own = called(handled, [GOOD, *[BAD] * 8, GOOD])
    assert [f.reason.partition(":")[0] for f in stats.fallbacks] == [
        "some calls run in eager",
        "graph break",
    ]
    assert len(own) == 2


def test_a_program_that_is_to_be_one_graph_stays_one() -> None:
    stats, own = called(handled, [GOOD, *[BAD] * 8, GOOD], fullgraph=True)
    assert (stats.entries, len(own)) == (1, 1)


def segments(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Sums of a graph network, as libraries write them, of nodes chosen by their values."""
    for _ in range(2):
        chosen = (x.sum(-1) > 0).nonzero().view(-1)
        x, i = x[chosen], i[chosen]
        n = int(i.max()) + 1 if i.numel() > 0 else 0
        try:
            index = i.view(-1, 1).expand_as(x)
            sums = x.new_zeros(n, 3).scatter_add_(0, index, x)
        except (IndexError, RuntimeError) as error:
            raise ValueError("an index is wrong") from error
        x = x + sums[i]
    return x.new_zeros(n, 3).scatter_reduce(0, i.view(-1, 1).expand_as(x), x, "amax")


def test_segments_of_chosen_nodes_are_two_programs() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = (9, 14, 30, 11)
    calls = [
        (torch.randn(n, 3, generator=generator), torch.randint(0, 4, (n,), generator=generator))
        for n in sizes
    ]
    stats, own = called(segments, calls)
    assert (stats.entries, own) == (2, [])


REFUSED = {
    "a difference of bools": ("x - 1.5", "torch.ones(3).bool()"),
    "a remainder of complex numbers": ("x % 2", "torch.ones(3) * 1j"),
    "an order of complex numbers": ("x < 2", "torch.ones(3) * 1j"),
    "a write": ("x.clone().sub_(True)", "torch.ones(3).bool()"),
    "a reduction": ("x.amax()", "torch.ones(3) * 1j"),
}
"""Calls that PyTorch's kernels refuse for their data type; fake kernels take most of them."""


@pytest.mark.parametrize("name", REFUSED)
def test_handlers_see_what_kernels_refuse(name: str) -> None:
    call, refused = REFUSED[name]
    text = f"""
def g(x): return {call}
def f(x):
    try:
        return g(x)
    except (RuntimeError, NotImplementedError):
        return x, "refused"
"""
    equal_to_eager(text, f"f({refused})", "f(torch.ones(3))", f"f({refused})")()

"""Calls that cannot be captured: the segment runs without a
graph, and one warning names the call.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Claim, Executor, PluginError, RuleTable, hookimpl


class Kernels:
    """An executor for ``torch.exp``, whose kernel waits for the device, or raises."""

    tj_name = "kernels"

    def __init__(self, recorder: Any = None, error: type[Exception] | None = None) -> None:
        self.error = error
        self.calls = 0

    def kernel(self, x: torch.Tensor) -> torch.Tensor:
        """The exponential; the kernel may raise on its second call."""
        self.calls += 1
        if self.error is not None and self.calls > 1:
            raise self.error("the library is in no state to go on")
        if self.error is None and x.sum().item() > 1e9:
            return x
        return torch.exp(x)

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        """The record."""
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("torch.exp", Claim(self.kernel))
        return (Executor("kernels", claims),)


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x * 2) + 1


def test_one_warning_names_the_call_and_the_line(graphed: Any) -> None:
    session = graphed(Kernels(), strict=False)
    f = session.jit(program)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for x in torch.rand(5, 3):
            torch.testing.assert_close(f(x), program(x))
    (text,) = [str(w.message) for w in said if issubclass(w.category, tj.TjWarning)]
    assert "runs without a CUDA graph" in text
    assert "stream is capturing" in text
    assert "kernels.torch.exp(" in text
    assert "test_failures.py:" in text
    assert session.recorder.counts == (1, 0, 0)


def test_in_strict_mode_it_is_an_error(graphed: Any) -> None:
    session = graphed(Kernels())
    f, x = session.jit(program), torch.rand(3)
    f(x)
    with pytest.raises(PluginError, match=r"stream is capturing.*kernels\.torch\.exp"):
        f(x)


def test_other_segments_keep_their_graphs(graphed: Any) -> None:
    session = graphed(Kernels(), strict=False)
    f, g = session.jit(program), session.jit(lambda x: (x + 1).cos())
    x = torch.rand(3)
    torch.testing.assert_close([g(x), g(x)], [(x + 1).cos()] * 2)
    with pytest.warns(tj.TjWarning, match="runs without a CUDA graph"):
        torch.testing.assert_close([f(x), f(x), f(x)], [program(x)] * 3)
    torch.testing.assert_close([g(x), g(x + 1)], [(x + 1).cos(), (x + 2).cos()])
    assert session.recorder.captures == 1
    assert session.recorder.replays == 3
    h = session.jit(lambda x: (x - 1).sin())
    torch.testing.assert_close([h(x), h(x)], [(x - 1).sin()] * 2)
    assert len(session.recorder.pools) == 2, "that of the failed capture is not used again"


def test_errors_of_the_program_are_the_programs(graphed: Any) -> None:
    session = graphed(Kernels(error=ZeroDivisionError), strict=False)
    f, x = session.jit(program), torch.rand(3)
    f(x)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in no state"):
            f(x)
    assert session.recorder.replays == 0


@pytest.mark.usefixtures("recorded")  # a bad index ends a process on a GPU
def test_an_error_of_eagers_is_eagers_in_every_run(session: Any) -> None:
    def pick(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.index_select(x * 2, 0, i) + 1

    f, x = session.jit(pick), torch.rand(3)
    good, bad = torch.tensor([0, 2]), torch.tensor([0, 7])
    for i in (good, bad, good, bad, good):
        if i is bad:
            with pytest.raises(IndexError, match="out of range"):
                f(x, i)
        else:
            torch.testing.assert_close(f(x, i), pick(x, i))


def test_results_in_one_memory_are_not_handed_out(graphed: Any) -> None:
    class Shares(Kernels):
        def kernel(self, x: torch.Tensor) -> torch.Tensor:
            """Once in memory of its own, then in its argument's."""
            self.calls += 1
            return torch.exp(x) if self.calls == 1 else x.exp_()

    session = graphed(Shares(), strict=False)
    f = session.jit(lambda x: (y := x * 2, torch.exp(y))[::-1])
    x = torch.rand(3)
    f(x)
    with pytest.warns(tj.TjWarning, match="results share memory"):
        f(x)
    assert session.recorder.replays == 0

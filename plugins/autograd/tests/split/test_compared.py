"""Values that the backward compares with an element chosen from them are not computed again.

Where calls are fused, that is; here all calls count as such.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd.split.costs import Costs
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Costs, "rounds", lambda self, call: True)


def saved(f: Callable[..., Any], **options: Any) -> set[str]:
    """The names of the values that the forward makes and saves."""
    session = tj.Session(["autograd", "torch"], overrides={"autograd": options})
    jitted = tj.jit(f, session=session)
    x = torch.randn(6, 5, requires_grad=True)
    jitted(x).sum().backward()
    expected = torch.autograd.grad(f(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)
    trace = tj.last_trace(jitted, stage="SPLIT")
    return {p.name for p in trace.outputs[2]} - {p.name for p in trace.inputs}


def greatest(x: torch.Tensor) -> torch.Tensor:
    return x.sin().amax(-1)


@pytest.mark.parametrize("options", [{}, {"memory_budget": 0.0}, {"prefer": "time"}], ids=str)
def test_compared_values_are_saved(options: dict[str, Any]) -> None:
    assert "sin" in saved(greatest, **options)


def test_values_that_are_not_compared_are_not_saved() -> None:
    assert saved(lambda x: (x.sin() * 2).exp().cos()) == set()


def test_a_mask_of_the_forward_is_saved_itself() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        h = x.sin()
        return (h == h.detach().amax(-1, keepdim=True)) * x

    assert saved(f) == {"eq"}


def test_calls_that_are_to_run_again_do() -> None:
    """With the maximum, so that both are of one kernel."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(greatest, x, use_reentrant=False) * 2

    assert saved(f) == set()

"""Distributions: their arguments are checked as in eager, and eager checks them afterwards."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from torch.distributions import Distribution, Normal


def program(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return Normal(x, scale).log_prob(x) * 2


def unchecked(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return Normal(x, scale, validate_args=False).log_prob(x) * 2


@pytest.mark.parametrize("checked", [True, False])
def test_the_setting_of_the_process_is_kept(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", checked)

    def broken(x: torch.Tensor) -> torch.Tensor:
        print("a graph break")
        return x + 1

    with pytest.warns(tj.TjWarning, match="graph break"):
        tj.jit(broken)(torch.ones(2))
    assert Distribution._validate_args is checked


def test_bad_arguments_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", True)
    jitted, x = tj.jit(program), torch.ones(3)
    with pytest.warns(tj.TjWarning, match="graph break"):
        torch.testing.assert_close(jitted(x, x), program(x, x))
    for f in (program, jitted, program):
        with pytest.raises(ValueError, match="Expected parameter scale"):
            f(x, -x)


def test_without_checks_they_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", True)
    jitted, x = tj.jit(unchecked), torch.ones(3)
    torch.testing.assert_close(jitted(x, x * 2), unchecked(x, x * 2))
    assert len(tj.last_trace(jitted).calls) > 3

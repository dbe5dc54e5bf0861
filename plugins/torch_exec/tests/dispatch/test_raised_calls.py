"""Calls that raise, again and again: their programs are captured once."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch

X = torch.ones(2, 4)


def _captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The captures from now on, one item for each."""
    from tj_torch.dispatch.dynamo import DynamoPrograms

    found: list[int] = []
    original = DynamoPrograms.compile

    def counted(self: Any, *args: Any) -> Any:
        found.append(1)
        return original(self, *args)

    monkeypatch.setattr(DynamoPrograms, "compile", counted)
    return found


def test_a_call_that_raises_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = _captures(monkeypatch)

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    jitted = tj.jit(program, plugins=["torch"])
    with pytest.raises(RuntimeError) as expected:
        program(X, X)
    for _ in range(3):
        with pytest.raises(RuntimeError) as raised:
            jitted(X, X)
        assert str(raised.value) == str(expected.value)
        assert any("test_raised_calls.py" in note for note in raised.value.__notes__)
    assert len(captures) == 1
    with pytest.raises(RuntimeError):
        jitted(X, torch.ones(3, 4))
    assert len(captures) == 2
    torch.testing.assert_close(jitted(X, X.t()), program(X, X.t()))
    assert len(captures) == 3
    assert tj.stats(jitted).fallbacks == ()


def test_a_call_that_raises_no_more_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Guarded(torch.nn.Module):
        limit = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] < self.limit:
                raise ValueError("too few rows")
            return x * 2

    module = Guarded()
    jitted = tj.jit(module, plugins=["torch"])
    captures = _captures(monkeypatch)
    for _ in range(2):
        with pytest.raises(ValueError, match="too few rows"):
            jitted(X)
    assert len(captures) == 1
    module.limit = 1
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * 2)
    assert len(captures) == 2
    assert tj.stats(jitted).misses == 1


def test_kinds_of_arguments_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = _captures(monkeypatch)
    jitted = tj.jit(lambda x, more: x @ more["w"], plugins=["torch"])
    wrong = (X, X.double().t(), X.half(), 1.0, "w", None)
    for _ in range(2):
        for w in wrong:
            with pytest.raises((RuntimeError, TypeError)):
                jitted(X, {"w": w})
    assert len(captures) == len(wrong)

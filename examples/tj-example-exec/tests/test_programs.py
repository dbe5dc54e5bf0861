"""Whole programs: found through its entry point, claiming, declining, equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

NAME = "example_exec"


def session(**options: Any) -> tj.Session:
    return tj.Session(plugins=[NAME, "torch"], overrides={NAME: options})


def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normed = F.rms_norm(x, (8,), weight)
    return F.silu(F.gelu(normed, approximate="tanh")) + x


def run(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[str], list[str]]:
    """The result, the operations the executor ran, and the reasons for which it declined."""
    jitted = tj.jit(fn, session=session(**options))
    result = jitted(*args)
    claims = tj.explain(jitted).claims
    ran = [c.symbol.name.rpartition(".")[2] for c in claims if c.executor == NAME]
    reasons = [why for c in claims for who, why in c.declined if who == NAME]
    return result, ran, [r for r in reasons if not r.startswith("has no claim")]


@pytest.fixture
def args() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-4, 4, 32).reshape(4, 8), torch.linspace(0.5, 1.5, 8)


def test_claims_and_equals_eager(args: Any) -> None:
    result, ran, reasons = run(program, *args)
    assert ran == ["rms_norm", "gelu", "silu"]
    assert reasons == []
    torch.testing.assert_close(result, program(*args))


def test_declined_operations_run_elsewhere(args: Any) -> None:
    wide = tuple(a.double() for a in args)
    result, ran, reasons = run(program, *wide)
    assert ran == []
    assert all(r.endswith("only float32 is implemented") for r in reasons)
    assert len(reasons) >= 3
    assert torch.equal(result, program(*wide))


def test_option(args: Any) -> None:
    result, ran, reasons = run(program, *args, min_elements=1000)
    assert ran == []
    assert all(r.endswith("min_elements is 1000") for r in reasons)
    assert torch.equal(result, program(*args))


def test_tag(args: Any) -> None:
    def tagged(x: torch.Tensor) -> torch.Tensor:
        return F.silu(tj.tag(x, "EXAMPLE_SKIP")) + F.silu(x * 2)

    result, ran, reasons = run(tagged, args[0])
    assert ran == ["silu"]
    assert reasons == ["tagged EXAMPLE_SKIP"]
    torch.testing.assert_close(result, tagged(args[0]))


def test_shows_in_the_trace(args: Any) -> None:
    jitted = tj.jit(program, session=session())
    jitted(*args)
    assert "example_exec.torch.nn.functional.gelu(" in str(tj.last_trace(jitted))


def test_misspelt_option_is_an_error() -> None:
    with pytest.raises(tj.TjError, match="Did you mean 'min_elements'"):
        session(min_element=3)

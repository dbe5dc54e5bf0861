"""Programs whose elementwise operations numexpr runs, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import PassRecord, Stage, TraceEditor, Transform

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.extend import PassContext, Trace


@pytest.fixture(autouse=True)
def _not_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TJ_DISABLE", raising=False)


def jit(f: Callable[..., Any], *plugins: str, dynamic: bool | None = None) -> Any:
    names = ("example_fuser", *plugins, "torch")
    session = tj.Session(names, overrides={"check": 3, "strict": True})
    return tj.jit(f, session=session, dynamic=dynamic)


def regions(jitted: Any) -> list[int]:
    """Number of operations in each region."""
    return [len(use.kernel.region.body.calls) for use in tj.explain(jitted).regions]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elementwise_operations_are_one_region(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y + 1).tanh() / 3 - x.exp().sqrt()

    x, y = torch.randn(5, 7, dtype=dtype), torch.randn(5, 7, dtype=dtype)
    jitted = jit(f)
    torch.testing.assert_close(jitted(x, y), f(x, y))
    assert jitted(x, y).dtype is dtype
    assert regions(jitted) == [7]


def test_values_that_are_read_twice_are_computed_once() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(12):
            x = x.sin() * x + x
        return x, x * 2

    x = torch.rand(4, 4, dtype=torch.float64)
    jitted = jit(f)
    torch.testing.assert_close(jitted(x), f(x))
    (use,) = tj.explain(jitted).regions
    assert len(use.kernel.fused.source) < 2000


def test_gradients_run_in_regions() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x * y).sin() + y).exp()

    found = []
    for g in (f, jit(f, "autograd")):
        x, y = (torch.ones(3, 3) * a for a in (0.5, 0.25))
        g(x.requires_grad_(), y.requires_grad_()).sum().backward()
        found.append((x.grad, y.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda x: (x.t() * 2).exp(), "contiguous"),
        (lambda x: (x + x[0]).exp(), "several shapes"),
        (lambda x: torch.add(x, x, alpha=2).exp(), "scales"),
        (lambda x: x.int() * 2 + 1, "data types"),
        (lambda x: x.erf().erfc(), "no such operation"),
    ],
)
def test_what_does_not_fit_runs_in_eager(f: Callable[..., Any], why: str) -> None:
    x = torch.randn(3, 3)
    jitted = jit(f)
    torch.testing.assert_close(jitted(x), f(x))
    assert regions(jitted) == []
    assert why in str(tj.explain(jitted))


def test_a_later_session_finds_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fuser says nothing of what it depends on: its code and its libraries are known."""
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path))

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).tanh()

    def kept() -> int:
        jitted, x = jit(f), torch.randn(5)
        torch.testing.assert_close(jitted(x), f(x))
        assert regions(jitted) == [3]
        return tj.stats(jitted).program_kept

    assert [kept(), kept()] == [0, 1]


def test_one_program_fuses_for_all_sizes() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y + 1).tanh()

    jitted = jit(f, dynamic=True)
    for n in (3, 5):
        x, y = torch.randn(n, 2 * n, 4), torch.randn(n, 2 * n, 4)
        torch.testing.assert_close(jitted(x, y), f(x, y))
    assert tj.stats(jitted).misses == 1
    assert regions(jitted) == [3]


def test_regions_stop_at_a_fence() -> None:
    """A transform tags a call, which nothing depends on; without the tag, there is one region."""

    def fence(trace: Trace, context: PassContext) -> Trace:
        editor = TraceEditor(trace, context.tags)
        for call in trace.calls:
            found = call.symbol.qualname == "torch.matmul"
            editor.append(call.replace(tags=call.tags.add("FENCE")) if found else call)
        return editor.done(PassRecord(context.name, context.plugin))

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x * 2).exp()
        z = x @ w
        return y, z, (x + 1).tanh()

    x, w = torch.rand(3, 3), torch.rand(3, 3)
    session = tj.Session(("example_fuser", "torch"), overrides={"check": 3, "strict": True})
    found = []
    for transforms in ([], [Transform("fence", fence, Stage.ACQUIRED)]):
        jitted = tj.jit(f, session=session, transforms=transforms)
        torch.testing.assert_close(jitted(x, w), f(x, w))
        found.append(regions(jitted))
    assert found == [[4], [2, 2]]

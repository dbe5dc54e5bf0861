"""Programs with several regions: equal ones are compiled once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_suites.fused import PROGRAMS, VIEWS, X, hold, regions

pytestmark = pytest.mark.sampled(10)


@pytest.mark.slow
def test_all_programs_together_are_one_program(fusing: Any) -> None:
    """Also: values of one part are no business of another's regions."""
    torch.manual_seed(0)
    chosen = [
        {**PROGRAMS, **VIEWS}[name]
        for name in ("pointwise", "softmax", "indexed", "masked", "norm")
    ]
    arguments = [make() for _, make in chosen]
    counts = [len(a) for a in arguments]

    def f(*flat: Any) -> Any:
        results, values = [], list(flat)
        for (g, _), count in zip(chosen, counts, strict=True):
            results.append(g(*values[:count]))
            del values[:count]
        return results

    hold(fusing(f), f, *(a for group in arguments for a in group))


@pytest.mark.slow
def test_equal_layers_are_compiled_once(fusing: Any) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
            self.n = torch.nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.b(F.gelu(self.a(self.n(x)))).tanh() * 0.5

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(6)))
    eager = copy.deepcopy(model)
    jitted = fusing(model)
    x = torch.randn(4, 8)
    jitted(x).square().sum().backward()
    eager(x).square().sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    found = [c.symbol for c in tj.last_trace(jitted).calls if "region_" in c.symbol.path]
    assert len(found) >= 3, "six layers, in pairs"
    assert len(set(found)) <= 2, "six layers, in pairs, and one less in each"


@pytest.mark.slow
def test_kernels_of_their_own_are_eagers(fusing: Any) -> None:
    """Of three products nothing is computed together."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    jitted = fusing(layers)
    hold(jitted, layers, X(2, 8))
    assert regions(jitted) == []
    assert "each of its calls is a kernel of its own" in str(tj.explain(jitted))
    assert [c.symbol.path for c in tj.last_trace(jitted).calls] == ["nn.functional.linear"] * 3
    hold(fusing(activated := torch.nn.Sequential(*layers, torch.nn.GELU())), activated, X(2, 8))


@pytest.mark.slow
def test_two_programs_in_turns(fusing: Any) -> None:
    """One session, values of equal names in both: neither sees the other's."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).exp() @ x.t()).sum(0) * 3

    def g(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).sin() @ x).sum(0) * 3

    first = fusing(f)
    second = tj.jit(g, session=first.__tj__.session)
    x = torch.randn(6, 6)
    for _ in range(2):
        xs = [x.clone().requires_grad_() for _ in range(4)]
        results = [first(xs[0]), second(xs[1]), f(xs[2]), g(xs[3])]
        for r in results:
            r.sum().backward()
        torch.testing.assert_close(xs[0].grad, xs[2].grad)
        torch.testing.assert_close(xs[1].grad, xs[3].grad)

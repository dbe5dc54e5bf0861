"""Arguments whose types Python or PyTorch refuses, and that change between calls."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager

PROGRAMS = {
    "range": "for _ in range(c.k): x = x + 1",
    "range of two": "for _ in range(0, c.k): x = x + 1",
    "gradients": "with torch.set_grad_enabled(c.k): x = x * 2",
    "gradients, handled": (
        "try:\n        with torch.set_grad_enabled(c.k): x = x * 2\n    except TypeError: x = x - 1"
    ),
}
"""Statements of a function of ``x``, which read a number of an object."""


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_refused_raises(name: str) -> None:
    text = f"""
x = torch.ones(2)
class C: k = True
c = C()
def f(x):
    {PROGRAMS[name]}
    return x
"""
    changes = (
        f"setattr(c, 'k', {k})"
        for k in ("2.0", "1", "3", "2.5", "False", "0.0", "None", "True", "3.5")
    )
    equal_to_eager(text, "f(x)", *(call for k in changes for call in (k, "f(x)")))()


def test_what_is_taken_is_captured() -> None:
    def f(x: torch.Tensor, k: int, grad: bool) -> torch.Tensor:
        with torch.set_grad_enabled(grad):
            for _ in range(k):
                x = x + 1
        return x

    jitted = tj.jit(f)
    for k, grad in ((2, True), (3, False), (True, True)):
        assert torch.equal(jitted(torch.ones(2), k, grad), torch.ones(2) + k)
    assert not tj.stats(jitted).fallbacks

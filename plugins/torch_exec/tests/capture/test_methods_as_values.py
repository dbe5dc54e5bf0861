"""Methods of classes that are values, where another one is put in their place between calls."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager

HOLDERS = {
    "an attribute": ("c.g(x)", "setattr(c, 'g', {})"),
    "a module's attribute": ("m.g(x)", "setattr(m, 'g', {})"),
    "an item": ("d['g'](x)", "d.update(g={})"),
    "a global": ("g(x)", "globals().update(g={})"),
}
METHODS = (
    "torch.Tensor.cos", "(lambda x: x + 5)", "torch.Tensor.__neg__", "torch.sin",
    "torch.Tensor.sin",
)  # fmt: skip


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("holder", HOLDERS)
def test_the_method_is_that_of_the_call(holder: str) -> None:
    read, change = HOLDERS[holder]
    text = f"""
x = torch.ones(2)
g = torch.Tensor.sin
class C: pass
c, m, d = C(), torch.nn.Module(), {{"g": g}}
c.g = m.g = g
def f(x): return {read}
"""
    changes = (change.format(method) for method in METHODS)
    equal_to_eager(text, "f(x)", *(call for k in changes for call in (k, "f(x)")))()


def test_an_argument() -> None:
    jitted = tj.jit(lambda x, g: g(x) + 1)
    x = torch.linspace(-1, 1, 3)
    for method in (torch.Tensor.sin, torch.Tensor.cos, torch.Tensor.sin):
        assert torch.equal(jitted(x, method), method(x) + 1)
    assert tj.stats(jitted).entries == 2
    assert not tj.stats(jitted).fallbacks

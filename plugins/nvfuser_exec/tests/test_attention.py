"""Attention as regions have it: PyTorch's operator for CUDA, on the reference.

PyTorch has no kernel of it for CPUs, so a call that runs outside of a region fails.
"""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch

F = torch.nn.functional
attention = torch.ops.aten._scaled_dot_product_flash_attention.default

SDPA = {"minimum": 1, "sdpa": True}


def inputs(dtype: torch.dtype, *sizes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in sizes]


def trained(f: Any, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result of ``f`` and the gradients."""
    mine = [x.detach().clone().requires_grad_() for x in values]
    out = f(*mine)
    out.float().square().sum().backward()
    return [out.detach(), *(x.grad for x in mine if x.grad is not None)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [None, 0.3], ids=["default", "scaled"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_attention(dtype: torch.dtype, scale: Any, causal: bool, fusing: Any) -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q * 2, k, v, 0.0, causal, scale=scale)[0].transpose(1, 2) + 1

    def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.double() for x in (q * 2, k, v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return found.transpose(1, 2).to(dtype) + 1

    # With fewer queries than keys, those of CUDA see the last keys, and not the first.
    length = 24 if causal else 16
    values = inputs(dtype, (2, 4, length, 32), (2, 4, 24, 32), (2, 4, 24, 32))
    jitted = fusing(f, SDPA)
    got, expected = trained(jitted, values), trained(eager, values)
    for mine, exact in zip(got, expected, strict=True):
        assert (mine - exact).norm() < 0.02 * exact.norm()
    used = tj.explain(jitted).regions
    names = {c.symbol.path for use in used for c in use.kernel.region.body.calls}
    both = {"_scaled_dot_product_flash_attention" + end for end in ("", "_backward")}
    assert {f"{name}.default" for name in both} <= {n.removeprefix("aten.") for n in names}
    assert all(use.kernel.failure is None for use in used)


def test_attention_of_many_sizes(fusing: Any) -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, 0.0, True)[0] * 2

    jitted = fusing(f, SDPA, dynamic=True)
    for length in (8, 12, 24):
        values = inputs(torch.bfloat16, *[(2, 4, length, 32)] * 3)
        out = jitted(*values)
        exact = F.scaled_dot_product_attention(*(x.double() for x in values), is_causal=True)
        torch.testing.assert_close(out.double(), exact * 2, rtol=5e-2, atol=5e-2)
        out.float().sum().backward()
    assert tj.stats(jitted).misses == 1


@pytest.mark.usefixtures("on_reference")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"off": True}, "sdpa is not on"),
        ({"dtype": torch.float32}, "more than 16 bits"),
        ({"heads": 2}, "other numbers of heads"),
        ({"dropout": 0.5}, "it has effects"),
        ({"debug": True}, "a mask for debugging"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_stays_outside(change: dict[str, Any], why: str, fusing: Any) -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        dropout, debug = change.get("dropout", 0.0), change.get("debug", False)
        return attention(q, k, v, dropout, True, debug)[0] * 2

    dtype, heads = change.get("dtype", torch.bfloat16), change.get("heads", 4)
    jitted = fusing(f, {"minimum": 1, "sdpa": "off" not in change}, strict=False)
    with pytest.raises(NotImplementedError, match="CPU"):
        jitted(*inputs(dtype, (2, 4, 16, 32), (2, heads, 16, 32), (2, heads, 16, 32)))
    assert why in str(tj.explain(jitted))

"""Small programs that show whether PyTorch computes what the reference of nvFuser asks it for."""

from __future__ import annotations

from typing import Any

import torch

from tj_nvfuser.testing.reference import Operations

__all__ = ["attention", "scaled"]


def scaled() -> None:
    """See that a product of 8 bits is scaled."""
    a = torch.eye(16).to(torch.float8_e4m3fn)
    two, three = torch.tensor(2.0), torch.tensor(3.0)
    found, *_ = Operations().scaled_mm(a, a.t(), two, three, bias=None, dtype=torch.bfloat16)
    assert torch.equal(found, torch.eye(16).bfloat16() * 6), f"a product is {found}"


def attention() -> None:
    """See that attention and its gradient are those of PyTorch's function."""
    x = torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8).bfloat16().requires_grad_()
    with torch.enable_grad():
        expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        (gradient,) = torch.autograd.grad(expected.float().sum(), x)
    given = x.detach()
    how: dict[str, Any] = {"dropout_p": 0.0, "is_causal": True, "scale": None}
    out, sums, seed, offset = Operations().sdpfa_fwd(given, given, given, **how)
    assert torch.allclose(out, expected, atol=1e-2), f"attention is {out}"
    grads = Operations().sdpfa_bwd(
        torch.ones_like(out), given, given, given, out, sums,
        philox_seed=seed, philox_offset=offset, **how,
    )  # fmt: skip
    assert torch.allclose(torch.stack(grads).sum(0), gradient, atol=5e-2), (
        f"its gradient is {grads}"
    )

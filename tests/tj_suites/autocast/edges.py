"""More programs: repeated arguments, hidden writes, frozen weights, programs that make leaves."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tj_suites.autocast.modules import Within
from tj_suites.autocast.regions import CASES, W, X, bf16, f16, given, inner, leaf, off

__all__ = ["CASES"]


@CASES(X, W)
def a_value_twice_in_a_call(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        return torch.cat([y, y, x]), torch.stack([x, y, x]), torch.cdist(y, y), y @ y


@CASES(X, W)
def a_leaf_in_every_place(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return torch.addcmul(w, w, w)


@CASES(X, inner(4, 4))
def an_inner_value_twice_in_a_call(x: Tensor, y: Tensor) -> Any:
    with bf16():
        return y @ y, F.mse_loss(x @ y, y)


@CASES(X, W)
def written_in_place(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = torch.zeros(4, 4, dtype=torch.bfloat16)
        y.addmm_((x @ w).detach(), (w @ x).detach())
        x.add_(y)
        return y, x @ w


@CASES(given(4, 4), given(4, 4), given(4, 4, dtype=torch.bfloat16))
def given_out(x: Tensor, y: Tensor, out: Tensor) -> Any:
    with bf16():
        torch.mul(x, y, out=out)
        return out @ x


@CASES(given(3, dtype=torch.int64), leaf(5, 4))
def renormalised(indices: Tensor, w: Tensor) -> Any:
    with bf16():
        y = F.embedding(indices.abs() % 5, w.detach(), max_norm=0.5)
        return y @ w.t(), (y * 2) @ w.t()


@CASES.made()
def normalised() -> Any:
    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.Linear(4, 2))
    return Within(layers), (torch.randn(6, 4),)


@CASES.made()
def frozen() -> Any:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    layers[0].requires_grad_(False)
    return Within(layers), (torch.randn(6, 4),)


@CASES.made()
def cells() -> Any:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTMCell(4, 4), nn.GRUCell(4, 4)

        def forward(self, x: Tensor) -> Any:
            h = c = torch.zeros(2, 4)
            for _ in range(2):
                h, c = self.lstm(x, (h, c))
                h = self.gru(x, h)
            return h, c

    return Within(Cells()), (torch.randn(2, 4),)


@CASES.made()
def attention_without_weights() -> Any:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            return self.inner(x, x, x, need_weights=False)[0]

    return Within(Attention()), (torch.randn(2, 5, 8),)


@CASES.made(around=torch.no_grad)
def without_gradients_around() -> Any:
    return Within(nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))), (torch.randn(6, 4),)


@CASES.made()
def in_evaluation() -> Any:
    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    return Within(layers).eval(), (torch.randn(6, 4),)


@CASES.made()
def up_and_down() -> Any:
    layers = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ConvTranspose1d(4, 2, 3), nn.PReLU(2))
    return Within(layers), (torch.randn(2, 2, 8),)


@CASES(X, W)
def frozen_halfway(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        return y, x @ w.detach(), y.detach() @ w


@CASES(X, W)
def own_cast(x: Tensor, w: Tensor) -> Any:
    with bf16():
        v = w.to(torch.bfloat16)
        return x @ v, x @ w, v


@CASES(X, W)
def own_cast_is_returned(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ w, w.bfloat16(), w.half(), w.to(torch.float32)


@CASES(X)
def a_leaf_made_inside(x: Tensor) -> Any:
    with bf16():
        v = x.detach().clone().requires_grad_()
        return (x @ v).detach(), ((x * 2) @ v).detach()


@CASES(X, W)
def placed_by_index(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        z = x.clone()
        z[0] = y[1]
        return (
            z,
            x.index_copy(0, torch.tensor([1]), x[:1]),
            z.scatter_add(0, torch.ones_like(x).long(), x),
        )


@CASES(X, W)
def chosen_by_condition(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        return torch.where(x > 0, y, x), torch.maximum(y, x), y.clamp(min=0), y // 1


@CASES(leaf(1, 2, 5, 4), given(1, 2, 5, 4, dtype=torch.bfloat16), leaf(1, 2, 5, 4))
def attention_of_mixed_types(q: Tensor, k: Tensor, v: Tensor) -> Any:
    with bf16():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.randn(5, 5))


@CASES(given(3, 4), leaf(3, 4))
def losses(x: Tensor, w: Tensor) -> Any:
    with bf16():
        p = torch.sigmoid(x @ w.t())
        t = torch.ones(3, 3)
        return (
            F.binary_cross_entropy(p, t), F.l1_loss(p, t), F.kl_div(p.log(), t), F.huber_loss(p, t),
            F.nll_loss(p.log_softmax(-1), torch.tensor([0, 2, 1])), F.poisson_nll_loss(p, t),
            F.triplet_margin_loss(p, t, p), F.cosine_similarity(p, t),
        )  # fmt: skip


@CASES(X, W)
def in_a_hook(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        y.register_hook(lambda grad: grad * 2)
        return y @ w


@CASES(X, W)
def reentrant(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return checkpoint(lambda x, w: torch.tanh(x @ w) @ w, x * 1, w, use_reentrant=True)


@CASES(X, W)
def a_leaf_in_a_condition_and_outside(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = torch.cond(x.sum() > 99, lambda x, w: x @ w, lambda x, w: w @ x, (x, w))
        return y


@CASES(X, W)
def types_that_do_not_fit_outside(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        with off():
            return y @ w


@CASES(X, W)
def alternating(x: Tensor, w: Tensor) -> Any:
    for i in range(4):
        with bf16() if i % 2 else f16():
            x = torch.tanh(x.float() @ w)
    return x


@CASES(X, W, around=bf16)
def function_of_functions(x: Tensor, w: Tensor) -> Any:
    def layer(x: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w)) + x

    return layer(layer(layer(x)))


@CASES(X, W, options={"autocast": torch.bfloat16})
def written_by_option(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    with torch.no_grad():
        w.add_(1)
    x.mul_(2)
    return y.detach(), x @ w


@CASES(X, W)
def numbers(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        return y.sum() * 2.5, y.mean().item() > 0, y.shape, y.std(), y.norm(), torch.linalg.norm(y)

"""More programs: modules, functions of autograd, checkpoints, symbolic sizes, errors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tj_suites.autocast.regions import CASES, W, X, bf16, f16, given, inner, leaf, off

__all__ = ["CASES"]

# ------------------------------------------------------------------------------- modules


class Within(nn.Module):
    """A module whose forward runs ``module`` under autocast."""

    def __init__(self, module: nn.Module, *more: Any) -> None:
        super().__init__()
        self.module = module
        self.more = more

    def forward(self, x: Tensor) -> Any:
        """Result of ``module``."""
        with bf16():
            return self.module(x, *self.more)


@CASES.made()
def perceptron() -> Any:
    layers = (nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    return Within(nn.Sequential(*layers)), (torch.randn(3, 8),)


@CASES.made()
def one_layer_twice() -> Any:
    layer = nn.Linear(8, 8)
    return Within(nn.Sequential(layer, nn.Tanh(), layer)), (torch.randn(3, 8),)


@CASES.made()
def convolutions() -> Any:
    layers = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 2))
    return Within(nn.Sequential(*layers)), (torch.randn(2, 2, 8, 8),)


@CASES.made()
def attention() -> Any:
    x = torch.randn(2, 5, 8)
    return Within(nn.MultiheadAttention(8, 2, batch_first=True), x, x), (torch.randn(2, 5, 8),)


@CASES.made()
def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return Within(layer), (torch.randn(2, 5, 8),)


@CASES.made()
def recurrent() -> Any:
    return Within(nn.LSTM(4, 4)), (torch.randn(3, 2, 4),)


@CASES.made()
def gated() -> Any:
    return Within(nn.GRU(4, 4)), (torch.randn(3, 2, 4),)


@CASES.made()
def embedding() -> Any:
    return Within(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))), (torch.arange(6),)


@CASES.made()
def dropout() -> Any:
    return Within(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))), (torch.randn(3, 8),)


@CASES.made(options={"autocast": torch.bfloat16})
def module_by_option() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8)), (torch.randn(3, 8),)


@CASES.made(around=bf16)
def module_in_ambient() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8)), (torch.randn(3, 8),)


@CASES(given(3, 4), leaf(5, 4), leaf(5), given(3, 5))
def loss(x: Tensor, w: Tensor, b: Tensor, target: Tensor) -> Any:
    with bf16():
        return F.mse_loss(F.linear(x, w, b), target)


@CASES(given(3, 4), leaf(5, 4))
def cross_entropy(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return F.cross_entropy(F.linear(x, w), torch.tensor([0, 4, 2]))


@CASES(leaf(1, 2, 5, 4), leaf(1, 2, 5, 4), leaf(1, 2, 5, 4))
def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor) -> Any:
    with bf16():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@CASES(leaf(6, 4), given(3, 2))
def chunks_of_a_leaf(w: Tensor, x: Tensor) -> Any:
    with bf16():
        q, k, v = w.chunk(3)
        return x @ q @ k.t() @ v, x @ q


@CASES(given(3, 4), leaf(5, 4))
def transposed_leaf(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ w.t(), (x + 1) @ w.t()


# ------------------------------------------------------------------- autograd's functions


class Product(torch.autograd.Function):
    """A product with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Products under the autocast of the backward's caller."""
        x, w = ctx.saved_tensors
        return grad.float() @ w.t(), x.t() @ grad.float()


class Amp(torch.autograd.Function):
    """A product whose backward runs under its forward's autocast."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Products under the forward's autocast."""
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


class Single(torch.autograd.Function):
    """A product in float32, whatever its arguments' types."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Products outside of autocast."""
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


@CASES(X, W)
def function(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return Product.apply(x, w)


@CASES(X, W)
def function_between_products(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return Product.apply((x @ w).float(), w) @ w


@CASES(X, W)
def function_with_custom_fwd(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return Amp.apply(x, w)


@CASES(X, W)
def function_with_cast_inputs(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return Single.apply(x @ w, w)


@CASES(X, W)
def functions_outside(x: Tensor, w: Tensor) -> Any:
    return Amp.apply(x, w), Single.apply(x, w)


# ------------------------------------------------------------------------- checkpoints


def block(x: Tensor, w: Tensor) -> Tensor:
    """Two products."""
    return torch.tanh(x @ w) @ w


@CASES(X, W)
def checkpointed(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return checkpoint(block, x, w, use_reentrant=False) @ w


@CASES(X, W)
def autocast_in_checkpoint(x: Tensor, w: Tensor) -> Any:
    def inside(x: Tensor, w: Tensor) -> Any:
        with bf16():
            return block(x, w)

    return checkpoint(inside, x, w, use_reentrant=False), checkpoint(
        inside, x, w, use_reentrant=False
    )


@CASES(X, W)
def off_in_checkpoint(x: Tensor, w: Tensor) -> Any:
    def inside(x: Tensor, w: Tensor) -> Any:
        with off():
            return block(x, w)

    with bf16():
        return checkpoint(inside, x, w, use_reentrant=False), x @ w


@CASES(X, W, around=bf16)
def checkpointed_in_ambient(x: Tensor, w: Tensor) -> Any:
    return checkpoint(block, x, w, use_reentrant=False) @ w


# -------------------------------------------------------------------- sizes, operands


@CASES(X, W, options={"dynamic": True})
def dynamic(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return F.layer_norm(x @ w, (x.shape[1],)) @ w


@CASES(given(2, 3, 4), leaf(4, 4), options={"dynamic": True})
def dynamic_batches(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return (x @ w).flatten(1), torch.bmm(x, x.transpose(1, 2))


@CASES(X, W)
def condition(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return torch.cond(x.sum() > 0, lambda x, w: x @ w, lambda x, w: w @ x, (x, w))


@CASES(X, inner(4, 4))
def detached(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return x @ w.detach(), (x @ w).detach() @ w


@CASES(X, W, falls_back="graph break")
def graph_break(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
    torch._dynamo.graph_break()
    with bf16():
        return y @ w


@CASES(leaf(4, 4), leaf(4, 4))
def gradients_inside(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = (x @ w).sum()
    (grad,) = torch.autograd.grad(y, w)
    return grad * 2


# ----------------------------------------------------------------------------- errors


@CASES(X, W, falls_back="of which autocast may keep a cast to another data type")
def types_that_do_not_fit(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        with f16():
            return y, x @ w


@CASES(X, given(3, 3))
def sizes_that_do_not_fit(x: Tensor, y: Tensor) -> Any:
    with bf16():
        return x @ y


@CASES(X, leaf(3, 3))
def sizes_that_do_not_fit_a_leaf(x: Tensor, y: Tensor) -> Any:
    with bf16():
        z = y @ y
        return z, F.linear(x, y)


@CASES(X, W)
def a_leaf_written_with_gradients(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        w.mul_(2)
        return y


@CASES(X, W)
def a_saved_value_is_written(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        z = y.exp()
        z.mul_(2)
        return z


# ------------------------------------------------------------------------ other policies


@CASES(given(4, 4), leaf(4, 4))
def kept_in_float(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = x @ w
        return y.prod(0), torch.cdist(y, y), F.smooth_l1_loss(y, x), y.trace()


@CASES(given(4, 4, dtype=torch.bfloat16), leaf(4, 4))
def promoted(x: Tensor, w: Tensor) -> Any:
    with bf16():
        return torch.stack([x, w]), torch.cat([x, w]), torch.addcmul(x, w, w, value=2)


@CASES(given(4, 4), leaf(4, 4))
def untouched(x: Tensor, w: Tensor) -> Any:
    with bf16():
        y = torch.softmax(x @ w, -1)
        return y, y.sum(), torch.exp(x), y.log().mean(), (y * w).cumsum(0)


@CASES(given(2, 4, 4), leaf(2, 4, 4), leaf(4, 4), leaf(4), given(4, 4))
def products(x: Tensor, w: Tensor, m: Tensor, b: Tensor, y: Tensor) -> Any:
    with bf16():
        found = torch.baddbmm(x, x, w), torch.addbmm(y, x, w), torch.addmm(y, y, m)
        return *found, torch.addmv(b, y, b), torch.bmm(x, w), torch.mv(m, y[0])


@CASES(leaf(4, 4))
def a_leaf_three_times_in_one_call(m: Tensor) -> Any:
    with bf16():
        return torch.linalg.multi_dot([m, m, m])

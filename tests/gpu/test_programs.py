"""Programs that users write for GPUs, in each configuration, against eager."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.models import MODELS, step
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only


def close(got: Any, expected: Any, **tolerance: float) -> None:
    """Compare; kernels for CUDA may add in any order."""
    tolerance = tolerance or {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(got, expected, **tolerance)


def train(model: nn.Module, run: Any, xs: list[Any], seed: int = 0, lr: float = 0.05) -> Any:
    """Three steps of SGD; losses and parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    losses = []
    for i, x in enumerate(xs):
        torch.manual_seed(seed + i)
        optimizer.zero_grad()
        loss = run(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [p.detach().clone() for p in model.parameters()]


def both(jit: Any, make: Any, xs: list[Any], **tolerance: float) -> Any:
    """Train two copies, one jitted, and compare; return the jitted one."""
    torch.manual_seed(0)
    eager = make()
    torch.manual_seed(0)
    mine = make()  # a copy of a recurrent network would not have its weights in one memory
    f = jit(mine)
    close(train(mine, f, xs), train(eager, eager, xs), **tolerance)
    close([*mine.buffers()], [*eager.buffers()], **tolerance)
    assert tj.stats(f).fallbacks == ()
    return f


def vectors(count: int = 4, *shape: int) -> list[torch.Tensor]:
    torch.manual_seed(5)
    return [torch.randn(*(shape or (8, 16))) for _ in range(count)]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.GELU(),
        nn.LayerNorm(32),
        nn.Linear(32, 16),
        nn.SiLU(),
        nn.Linear(16, 4),
    )


def test_a_network_trains(jit: Any, kind: str) -> None:
    f = both(jit, network, vectors())
    if kind in ("nvfuser", "inductor", "all"):
        regions = tj.explain(f).regions
        assert regions
        assert all(use.kernel.failure is None for use in regions)


def test_dropout_draws_as_eager(jit: Any) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.GELU(), nn.Linear(32, 4))

    both(jit, make, vectors())


def test_random_numbers_and_the_generator_after(jit: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        return x * torch.rand_like(x) + 1, torch.randn(3, device=x.device), F.dropout(x, 0.3)

    g, x = jit(f), vectors(1)[0]
    for seed in range(4):
        torch.manual_seed(seed)
        expected, after = f(x), torch.rand(4)
        torch.manual_seed(seed)
        close((g(x), torch.rand(4)), (expected, after))


def test_a_checkpoint_draws_again(jit: Any) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.4), nn.Tanh())
            self.last = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """A block with a checkpoint."""
            from torch.utils.checkpoint import checkpoint

            return self.last(checkpoint(self.inner, x, use_reentrant=False))  # type: ignore[no-any-return]

    both(jit, Block, vectors())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(jit: Any, dtype: torch.dtype) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """The network under autocast."""
            with torch.autocast(x.device.type, dtype):
                return self.inner(x)  # type: ignore[no-any-return]

    both(jit, Cast, vectors(), rtol=2e-2, atol=2e-2)


def test_a_gradient_scaler(jit: Any, on_gpu: None) -> None:
    found = []
    for jits in (jit, lambda m: m):
        torch.manual_seed(0)
        model = network()
        f = jits(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x in vectors():
            with torch.autocast("cuda", torch.float16):
                loss = f(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        found.append([p.detach() for p in model.parameters()])
    close(found[0], found[1], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"]
)
def test_attention_by_each_backend(
    jit: Any, backend: str, dtype: torch.dtype, on_gpu: None
) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if dtype is torch.float32 and backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
        pytest.skip("this kernel of PyTorch takes no float32")

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 0.5, k, v + 1, is_causal=True) * 2

    g = jit(f)
    torch.manual_seed(0)
    for n in (64, 64, 64, 128):
        xs = [torch.randn(2, 4, n, 64, dtype=dtype, requires_grad=True) for _ in range(3)]
        with sdpa_kernel(getattr(SDPBackend, backend)):
            y, z = f(*xs), g(*xs)
            wanted, got = (torch.autograd.grad(o.float().square().sum(), xs) for o in (y, z))
        close((z, got), (y, wanted), rtol=2e-2, atol=2e-2)
    assert tj.stats(g).fallbacks == ()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_convolutions_and_batch_norm(jit: Any, layout: Any, dtype: torch.dtype) -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2, groups=4), nn.BatchNorm2d(16), nn.GELU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
        ).to(dtype=dtype, memory_format=layout)  # fmt: skip

    xs = [x.to(dtype=dtype, memory_format=layout) for x in vectors(3, 4, 3, 16, 16)]
    tolerance = 5e-2 if dtype is torch.bfloat16 else 2e-3
    both(jit, make, xs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda c: c.__name__)
def test_recurrent_networks(jit: Any, cell: Any) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell(16, 24, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """All outputs of the cell, scaled."""
            return self.cell(x)[0].tanh() * 2  # type: ignore[no-any-return]

    both(jit, Recurrent, vectors(3, 4, 6, 16), rtol=2e-3, atol=2e-3)


def test_moves_between_devices(jit: Any) -> None:
    def f(x: torch.Tensor, host: torch.Tensor) -> Any:
        y = (x * 2 + 1).exp()
        back = y.sum(0).cpu() + host
        return y * host.to(x.device, non_blocking=True) + 1, back * 3, x.new_zeros(3)

    g = jit(f)
    for x in vectors():
        host = torch.rand(16, device="cpu")
        close(g(x, host), f(x, host))
    assert tj.stats(g).fallbacks == ()


def test_numbers_of_the_device(jit: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        scale = (x.sum() * 2).item()
        return (x * scale + 1).sin() if scale > 0 else x.cos() + scale

    g = jit(f)
    for x in (*vectors(3), -vectors(1)[0].abs()):
        close(g(x), f(x))


def test_masks_and_sizes_that_depend_on_data(jit: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        chosen = x[x > 0]
        return (chosen * 2 + 1).sum(), chosen.numel(), x.nonzero().shape[1], torch.unique(x.round())

    g = jit(f)
    for x in vectors(3):
        close(g(x), f(x))


def test_writes_and_views(jit: Any) -> None:
    def f(x: torch.Tensor, out: torch.Tensor) -> Any:
        y = x * 2
        y[1:3] += 1
        out.copy_(y.sum(0))
        row = x[0]
        row.mul_(3)
        return y, row, x.t(), out[2:]

    g = jit(f)
    for x in vectors():
        mine, theirs = x.clone(), x.clone()
        a, b = torch.zeros(16), torch.zeros(16)
        got, expected = g(mine, a), f(theirs, b)
        close((got, mine, a), (expected, theirs, b))
        assert mine._version == theirs._version
        assert got[1].data_ptr() == mine.data_ptr()
        assert got[3].data_ptr() == a[2:].data_ptr()


def test_sizes_that_change(jit: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        return (x.softmax(-1) * x.shape[0]).sum(0) + x.mean()

    g = jit(f, dynamic=True)
    for n in (4, 7, 2, 1, 33, 4):
        x = torch.randn(n, 16, requires_grad=True)
        y, z = f(x), g(x)
        close((z, torch.autograd.grad(z.sum(), x)), (y, torch.autograd.grad(y.sum(), x)))


def test_other_precision_of_products(jit: Any, on_gpu: None) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).relu() + 1

    g = jit(f)
    torch.manual_seed(0)
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            torch.testing.assert_close(g(a, b), f(a, b), rtol=1e-5, atol=1e-5)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
@pytest.mark.parametrize(
    "more", [{}, {"foreach": True}, {"capturable": True}, {"fused": True}], ids=str
)
@pytest.mark.parametrize("kind", ["exact"], indirect=True)
@pytest.mark.filterwarnings("ignore::tj_core.errors.TjWarning")  # which run as they are
def test_steps_of_optimizers(name: str, more: dict[str, Any], jit: Any, on_gpu: None) -> None:
    ends = []
    for jitted in (True, False):
        torch.manual_seed(0)
        model = network()
        try:
            optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **more)
        except (TypeError, RuntimeError, ValueError):
            pytest.skip("this optimizer has no such option")
        run = jit(optimizer.step) if jitted else optimizer.step
        for x in vectors(3):
            model(x).square().sum().backward()
            run()
            optimizer.zero_grad()
        ends.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_train(name: str, jit: Any, kind: str) -> None:
    made = MODELS[name]
    if name == "bert":
        # Where transformers sees a compiler, it gives attention a mask of which each row is one
        # element, spread: PyTorch then takes the kernel of products, with other random numbers.
        made = replace(made, sizes={**made.sizes, "attention_probs_dropout_prob": 0.0})
    model = made.build().train().to(torch.get_default_device())
    batch = tree_map_only(
        torch.Tensor, lambda x: x.to(torch.get_default_device()), dict(MODELS[name].batch())
    )
    expected = step(model, model, batch, 0)
    f = jit(model)
    for _ in range(4 if kind in ("cudagraph", "all") else 2):
        got = step(model, f, batch, 0)
        for parameter, gradient in got["grads"].items():
            eager = expected["grads"][parameter]
            if gradient is not None:  # all of them: that of a late layer shows where it began
                print(parameter, (gradient - eager).abs().max().item(), eager.abs().max().item())
        mine, theirs = (tree_leaves(found["out"]) for found in (got, expected))
        values = [(a, b) for a, b in zip(mine, theirs, strict=True) if isinstance(a, torch.Tensor)]
        close(*map(list, zip(*values, strict=True)), rtol=2e-3, atol=2e-4)
        close(got["grads"], expected["grads"], rtol=2e-3, atol=2e-4)
        close(got["random"], expected["random"])
    assert tj.stats(f).fallbacks == ()
    regions = tj.explain(f).regions
    assert [use.kernel.failure for use in regions if use.kernel.failure] == []
    assert regions or kind in ("exact", "cudagraph")

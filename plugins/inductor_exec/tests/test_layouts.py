"""Saved values that Inductor lays out its own way: results and gradients stay as eager's."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import TjWarning
from torch import nn

IMAGES = torch.randn(4, 3, 12, 12)


class Net(nn.Module):
    """Two convolutions with norms; ``seen`` chooses what is returned beside the mean."""

    def __init__(self, seen: Callable[..., Any] = lambda y, z: ()) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.seen = nn.BatchNorm2d(8), seen

    def forward(self, x: torch.Tensor) -> Any:
        y = F.relu(self.norm(self.first(x)))
        z = self.second(y)
        return (z.sigmoid() * z).mean((2, 3)), self.seen(y, z)


def leaves(tree: Any) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def step(net: Any, model: nn.Module, images: torch.Tensor = IMAGES) -> list[torch.Tensor]:
    """Results and gradients, of inputs too."""
    x = images.clone().requires_grad_()
    results = leaves(net(x))
    sum(r.square().mean() for r in results).backward()
    gradients = [p.grad for p in model.parameters()]
    return [*(r.detach() for r in results), x.grad, *gradients, *model.buffers()]  # type: ignore[list-item]


def hold(jit: Any, net: Net, images: torch.Tensor = IMAGES) -> Any:
    """Compare two steps of a jitted ``net`` with eager, values and
    strides; return the jitted one.
    """
    twin = copy.deepcopy(net)
    jitted = jit(net)
    for _ in range(2):
        got, expected = step(jitted, net, images), step(twin, twin, images)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            assert a.stride() == b.stride()
        for p in (*net.parameters(), *twin.parameters()):
            p.grad = None
    return jitted


def chosen(jitted: Any) -> tuple[int, int]:
    """Number of saved values with strides that Inductor chose, and of those that the backward takes
    so.
    """
    kernels = [r.kernel for r in tj.explain(jitted).regions]
    made = sum(len(k.strides) for k in kernels if not k.region.backward)
    return made, sum(len(k.region.strides) for k in kernels if k.region.backward)


@pytest.mark.slow
def test_saved_values_are_laid_out_for_convolutions(fusing: Any) -> None:
    made, taken = chosen(hold(fusing, Net()))
    assert made == taken >= 3


@pytest.mark.slow
def test_blocks_of_convolutions_are_one_region(fusing: Any) -> None:
    """So that values between them are laid out for convolutions, too."""
    net = Net()
    net.second = nn.Sequential(*(nn.Sequential(nn.Conv2d(8, 8, 1), nn.GELU()) for _ in range(14)))  # type: ignore[assignment]
    jitted = hold(fusing, net)
    assert sorted(r.kernel.region.backward for r in tj.explain(jitted).regions) == [False, True]


class ByChannels(nn.Module):
    """A block of a ConvNeXt: between two moves of dimensions, layers of the channels of a pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = self.norm(self.first(x).permute(0, 2, 3, 1))
        return x + self.narrow(F.gelu(self.wide(pixels))).permute(0, 3, 1, 2)


@pytest.mark.slow
def test_moved_dimensions_are_no_images() -> None:
    """Values of layers between two moves are saved as they are, with the channels together."""
    overrides = {"check": 2, "strict": True, "onednn": {"choose": "always"}}
    session = tj.Session(("onednn", "inductor", "autograd", "torch"), overrides=overrides)
    net = Net(lambda y, z: y.amax((2, 3)))
    net.second = nn.Sequential(ByChannels(), nn.ReLU(), ByChannels(), nn.Conv2d(8, 8, 1))  # type: ignore[assignment]
    jitted = hold(functools.partial(tj.jit, session=session), net)
    (forward,) = (r.kernel for r in tj.explain(jitted).regions if not r.kernel.region.backward)
    saved = enumerate(forward.region.body.outputs)
    of_pixels = [i for i, p in saved if p.shape[1:3] == (12, 12) and p.shape[3] > 1]
    assert of_pixels
    assert not forward.strides.keys() & of_pixels


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
def test_dimensions_of_size_one_have_eager_strides(fusing: Any, threads: int) -> None:
    """Other kernels of PyTorch convolve with more than one thread, and give other strides."""
    net = Net(lambda y, z: z)
    net.second = nn.Conv2d(8, 1, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        hold(fusing, net)
        hold(fusing, net, IMAGES.to(memory_format=torch.channels_last))
    finally:
        torch.set_num_threads(before)


OF_SIZE_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a product": lambda x: x.sin().t() * 2,
    "a gradient": lambda x: x.t().sin().t(),
    "operands laid out alike": lambda x: (x.as_strided((4, 1, 2, 1), (2, 1, 1, 1)) * x[0]).sin(),
    "a sort": lambda x: (x * 2).sort(0)[0],
    "sorted rows": lambda x: (x * 2).view(1, 8, 1).sort(0)[0],
    "what is used again": lambda x: (x.sin().t() * 2).exp().cumsum(0).t() * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("program", OF_SIZE_ONE)
def test_results_have_eager_strides_also_of_size_one(fusing: Any, program: str) -> None:
    """PyTorch's kernels and its fake tensors give such dimensions different strides."""
    f = OF_SIZE_ONE[program]

    def seen(run: Any) -> list[Any]:
        x = torch.linspace(-1, 1, 8, dtype=torch.float64).view(8, 1).requires_grad_()
        result = run(x)
        result.square().sum().backward()
        return [(t.detach(), t.stride()) for t in (result, x.grad)]

    torch.testing.assert_close(seen(fusing(f)), seen(f))


@pytest.mark.slow
def test_gradients_of_convolutions_are_in_channels_last(fusing: Any) -> None:
    """Their inputs are copied into no other order of dimensions, which grouped weights suggest."""
    net = Net()
    net.second = nn.Conv2d(8, 8, 3, padding=1, groups=8)
    hold(fusing, net.to(memory_format=torch.channels_last))
    jitted = hold(fusing, net, IMAGES.to(memory_format=torch.channels_last))
    (source,) = (
        r.kernel.fused.source for r in tj.explain(jitted).regions if r.kernel.region.backward
    )
    layouts = re.findall(r"empty_strided_cpu\(\(4, 8, 12, 12\), \((.*?)\)", source)
    assert layouts
    assert set(layouts) == {"1152, 1, 96, 8"}


@pytest.mark.slow
def test_what_the_user_sees_has_eager_strides(fusing: Any) -> None:
    """Values that are both returned and saved have eager's strides, and so do views of them."""
    hold(fusing, Net(lambda y, z: (y, z[:, 2:], y.flatten(1), z.transpose(1, 3))))


def _gradients(x: torch.Tensor, weight: torch.Tensor, tangent: torch.Tensor) -> Any:
    joined = torch.cat([x, x * 2], 1)
    found = torch.ops.aten.convolution_backward(
        tangent, joined, weight, [8], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
    )
    return (joined, *found)


def _product(x: torch.Tensor, weight: torch.Tensor) -> Any:
    doubled = x * 2
    return doubled, doubled @ weight


ARGUMENTS = {
    _gradients: (
        torch.randn(4, 12, 12, 8).permute(0, 3, 1, 2),
        torch.randn(8, 16, 1, 1),
        torch.randn(4, 8, 12, 12),
    ),
    _product: (torch.randn(3, 4).t(), torch.randn(3, 5)),
}


@pytest.mark.parametrize("program", ARGUMENTS)
def test_what_kernels_read_has_the_strides_that_are_asked_for(program: Callable[..., Any]) -> None:
    """Inductor lays out arguments of such kernels last, also those that are results."""
    given = ARGUMENTS[program]
    expected = program(*given)
    asked = expected[0].contiguous().stride()
    made = compiled(program, given, {0: asked})
    found = made.function(list(given))
    assert found[0].stride() == asked == made.strides[0]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def compiled(program: Callable[..., Any], given: Sequence[torch.Tensor], visible: Any) -> Any:
    """``program``, compiled by Inductor for ``given``."""
    from tj_inductor.adapter import compiling

    mode = torch._subclasses.FakeTensorMode()
    with mode:
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in given]
    graph = compiling.traced(program, fakes, mode)
    return compiling.compiled(graph, fakes, mode, visible, backward=True)


def test_no_new_value_is_written_into_memory_that_is_needed() -> None:
    """An argument of ``index_put`` is laid out here, as it has dimensions of size one."""

    def f(x: torch.Tensor, row: torch.Tensor, at: torch.Tensor, value: torch.Tensor) -> Any:
        whole = torch.ops.aten.as_strided_scatter.default(x, row, [2, 1, 3], [3, 3, 1])
        view = torch.ops.aten.as_strided.default(whole, [1, 1, 3], [3, 3, 1], 0)
        return whole, torch.ops.aten.index_put.default(view, [at], value)

    given = torch.arange(6), torch.ones(2, 1, 3).long(), torch.tensor([0]), torch.tensor(5)
    found = compiled(f, given, {0: None, 1: None}).function(list(given))
    torch.testing.assert_close(found, list(f(*given)), rtol=0, atol=0)


@pytest.mark.slow
def test_inputs_in_channels_last_keep_what_they_lead_to(fusing: Any) -> None:
    hold(fusing, Net(), IMAGES.to(memory_format=torch.channels_last))


def test_hooks_may_put_saved_values_elsewhere(fusing: Any) -> None:
    """They come back laid out otherwise, and the backward gets them as they were."""
    net = Net()
    twin, jitted = copy.deepcopy(net), fusing(net)
    expected = step(twin, twin)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.contiguous().clone(), lambda t: t.clone(memory_format=torch.contiguous_format)
    ):
        got = step(jitted, net)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert chosen(jitted)[1]


def test_a_backward_that_cannot_be_compiled_gets_copies(
    fusing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tj_inductor.compiler import Compiler

    made = Compiler.made

    def picky(self: Any, region: Any, *args: Any) -> Any:
        if region.strides:
            raise RuntimeError("no kernel for these strides")
        return made(self, region, *args)

    monkeypatch.setattr(Compiler, "made", picky)
    with pytest.warns(TjWarning, match="no kernel for these strides"):
        hold(lambda f: fusing(f, strict=False), Net())


@pytest.mark.slow
def test_strides_that_are_read_are_made_first(fusing: Any) -> None:
    """``as_strided`` in the backward reads what is saved as eager lays it out."""

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = F.conv2d(x, w, padding=1).relu()
            ctx.save_for_backward(y, w)
            return y.sigmoid()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            y, w = ctx.saved_tensors
            back = y.as_strided((4, 8, 144), (1152, 144, 1)).square().mean((0, 1))
            grad = torch.nn.grad.conv2d_input((4, 8, 12, 12), w, g * y, padding=1)
            return grad * back.view(12, 12), w * 2

    class Strided(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return Reads.apply(F.relu(self.first(x)), self.second.weight).mean((2, 3))

    net = Strided()
    net.norm.requires_grad_(False)
    net.second.bias = None
    twin, jitted = copy.deepcopy(net), fusing(net)
    got, expected = step_of(jitted, net), step_of(twin, twin)
    assert chosen(jitted)[1]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def step_of(net: Any, model: nn.Module) -> list[Any]:
    x = IMAGES.clone().requires_grad_()
    net(x).square().mean().backward()
    return [x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "returned": torch.relu,
    "viewed": lambda y: y.view(-1).relu(),
    "viewed by strides": lambda y: y.as_strided((24,), (1,)).relu(),
    "written by strides": lambda y: y.as_strided_scatter(torch.ones(3), (3,), (1,)).relu(),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("after", AFTER)
def test_a_formula_that_lays_out_otherwise(fusing: Any, after: str, dynamic: bool) -> None:
    """The formula for a layer norm's gradient keeps the tangent's strides, the kernel does not."""

    def f(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, [3], w, w, 1e-5)
        given = (grad.transpose(1, 2), x, [3], mean, rstd, w, w, [True, False, False])
        return AFTER[after](torch.ops.aten.native_layer_norm_backward(*given)[0] * 2)

    args = torch.randn(2, 3, 4), torch.randn(2, 4, 3), torch.rand(3)
    if dynamic:
        torch._dynamo.mark_dynamic(args[0], 0)
        torch._dynamo.mark_dynamic(args[1], 0)
    expected, got = f(*args), fusing(f)(*args)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("mode", ["replicate", "reflect"])
def test_padding_in_channels_last(mode: str, fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x * 2, [1, 1, 1, 1], mode=mode) * 3

    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    tangent, found = torch.randn(2, 3, 6, 6), []
    for fn in (fusing(f), f):
        given = x.detach().requires_grad_()
        found.append(torch.autograd.grad(fn(given), given, tangent)[0])
    torch.testing.assert_close(*found)
    assert found[0].stride() == found[1].stride()


class Skips(nn.Module):
    """A convolution reads two values side by side, as in a U-Net; ``then`` is done to these."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor], seen: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
        self.then, self.seen = then, seen

    def forward(self, x: torch.Tensor) -> Any:
        joined = torch.cat([x, F.silu(self.first(x)).flip(2)], 1)
        result = self.last(self.then(joined))
        return (result, joined) if self.seen else result


@pytest.mark.slow
@pytest.mark.parametrize("then", [lambda x: x, lambda x: F.relu(x) * 2], ids=["as it is", "loops"])
def test_values_side_by_side_are_written_for_the_convolution(fusing: Any, then: Any) -> None:
    jitted = hold(fusing, Skips(then))  # type: ignore[arg-type]
    (source,) = (
        r.kernel.fused.source for r in tj.explain(jitted).regions if not r.kernel.region.backward
    )
    layouts = re.findall(r"empty_strided_cpu\(\(4, 8, 12, 12\), \((.*?)\)", source)
    assert layouts
    assert set(layouts) == {"1152, 1, 96, 8"}


@pytest.mark.slow
def test_results_after_values_side_by_side_have_eager_strides(fusing: Any) -> None:
    """Inductor propagates metadata anew, and declares the strides of results by it."""
    net = nn.Sequential(Skips(lambda x: x), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1), nn.SiLU())
    net.eval()
    with torch.no_grad():
        for size in (12, 2):
            x = IMAGES[:, :, :size, :size].contiguous()
            found, expected = fusing(net)(x), net(x)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


@pytest.mark.slow
def test_a_transposed_convolution_of_values_side_by_side(fusing: Any) -> None:
    """Its result is contiguous: Inductor says so of images in channels_last, and is wrong."""
    net = Skips(lambda x: x)
    net.last = nn.ConvTranspose2d(8, 4, 1)  # type: ignore[assignment]
    hold(fusing, net)
    hold(fusing, net, IMAGES[:, :, :, :2])


@pytest.mark.slow
def test_values_side_by_side_that_are_returned_have_eager_strides(fusing: Any) -> None:
    hold(fusing, Skips(lambda x: x.relu(), seen=True))  # type: ignore[arg-type]

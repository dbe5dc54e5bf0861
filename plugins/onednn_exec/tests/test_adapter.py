"""The operators of oneDNN in this PyTorch do what the adapter says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tj_onednn import adapter, kernels, operators
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

X, W, B = torch.randn(5, 7), torch.randn(3, 7), torch.randn(3)
STACK = torch.randn(2, 5, 7), torch.randn(2, 7, 3), torch.randn(2, 5, 3)
GAPS = torch.randn(3, 20)[:, :7]

KERNELS = {
    "linear": (kernels.linear, torch.nn.functional.linear, (X, W, B)),
    "linear without a bias": (kernels.linear, torch.nn.functional.linear, (X, W)),
    "linear of rows in rows": (kernels.linear, torch.nn.functional.linear, (STACK[0], W, B)),
    "linear of a part of each row": (kernels.linear, torch.nn.functional.linear, (X, GAPS)),
    "mm": (kernels.mm, torch.mm, (X, W.t())),
    "mm of a part of each row": (kernels.mm, torch.mm, (X.t(), torch.randn(5, 9)[:, :3])),
    "mm of transposed": (kernels.mm, torch.mm, (X.t(), torch.randn(3, 5).t())),
    "mm of expanded": (kernels.mm, torch.mm, (torch.randn(1, 1).expand(4, 7), W.t())),
    "addmm, a row": (kernels.addmm, torch.addmm, (B, X, W.t())),
    "addmm, all of it": (kernels.addmm, torch.addmm, (torch.randn(5, 3), X, W.t())),
    "bmm": (kernels.bmm, torch.bmm, STACK[:2]),
    "baddbmm": (kernels.baddbmm, torch.baddbmm, (STACK[2], *STACK[:2])),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compute_what_they_stand_for(name: str) -> None:
    mine, theirs, args = KERNELS[name]
    expected = theirs(*args)
    torch.testing.assert_close(mine(*args), expected)
    assert mine(*args).stride() == expected.stride()
    mode = FakeTensorMode()
    with mode:
        fake = mine(*map(mode.from_tensor, args))
    assert (fake.shape, fake.stride()) == (expected.shape, expected.stride()), "it can be traced"


@pytest.mark.parametrize(
    ("weight", "copied"),
    [
        (W, False),
        (torch.randn(7, 3).t(), False),
        (GAPS, True),
        (torch.randn(7, 9)[:, :3].t(), True),
    ],
    ids=["rows", "columns", "rows with gaps", "columns with gaps"],
)
def test_weights_with_gaps_are_copied(
    weight: torch.Tensor, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[torch.Tensor] = []
    monkeypatch.setattr(operators, "LINEAR", lambda x, w, *rest: given.append(w))
    kernels.linear(X, weight)
    assert (given[0] is not weight) is copied
    assert given[0].is_contiguous() or given[0].t().is_contiguous()


def test_a_convolution_of_images() -> None:
    """On fake tensors its strides are others, so that no region hosts it."""
    x, w, b = torch.randn(2, 4, 9, 9), torch.randn(8, 2, 3, 3), torch.randn(8)
    expected = torch.conv2d(x, w, b, 2, (1, 0), 1, 2)
    got = kernels.convolution(x, w, b, 2, (1, 0), 1, 2)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    both = kernels.convolution(x, w, b, stride=2, padding=(1, 0), groups=2, post=("relu", [], ""))
    torch.testing.assert_close(both, expected.relu())


@pytest.mark.bfloat16
def test_rounded_is_a_product_in_bfloat16() -> None:
    got = kernels.rounded(kernels.linear)(X, W, bias=B)
    expected = torch.nn.functional.linear(X.bfloat16(), W.bfloat16(), B.bfloat16()).float()
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)
    assert not torch.equal(got, kernels.linear(X, W, B))


def test_apart_is_outside_of_all_modes() -> None:
    with FakeTensorMode(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        with adapter.apart():
            ones = torch.ones(2, 2, requires_grad=True, device="cpu")
            x = ones @ ones
            assert x.tolist() == [[2.0, 2.0], [2.0, 2.0]]
            assert x.dtype == torch.float32
            assert not x.requires_grad
            assert not x.is_inference()
        assert isinstance(torch.ones(2), FakeTensor)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """With more, PyTorch's convolutions by one pixel are oneDNN's, and lay out gradients so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SIZES = {"usual": (2, 6, 5, 7), "one channel": (2, 1, 5, 7), "one pixel": (3, 6, 1, 1)}
HOW = [1, 1], [0, 0], [1, 1], False, [0, 0], 1


def in_layout(by_pixels: bool, *shape: int) -> torch.Tensor:
    n, c, h, w = shape
    return torch.randn(n, h, w, c).permute(0, 3, 1, 2) if by_pixels else torch.randn(shape)


def hold_layouts(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected)
    if 1 not in found.shape:
        assert found.stride() == expected.stride()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("by_pixels", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_convolution_by_one_pixel(with_bias: bool, by_pixels: bool, size: str) -> None:
    x = in_layout(by_pixels, *SIZES[size])
    weight, bias = torch.randn(4, x.shape[1], 1, 1), torch.randn(4) if with_bias else None
    args = x, weight, bias, *HOW
    found, expected = kernels.pointwise(*args), torch.ops.aten.convolution.default(*args)
    hold_layouts(found, expected)
    mode = FakeTensorMode()
    with mode:
        fake = kernels.pointwise(mode.from_tensor(x), mode.from_tensor(weight), None, *HOW)
    assert (fake.shape, fake.stride()) == (found.shape, found.stride())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layouts", [(0, 0, 0), (1, 1, 0), (1, 1, 1), (0, 1, 0), (1, 0, 0)])
@pytest.mark.parametrize("mask", [(1, 1, 1), (1, 1, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)])
def test_the_backward_of_a_convolution_by_one_pixel(
    mask: Any, layouts: tuple[int, ...], size: str
) -> None:
    """``layouts`` say which of the tangent, the images and the weight are in channels_last."""
    n, c, h, w = SIZES[size]
    shapes = (n, 4, h, w), (n, c, h, w), (4, c, 1, 1)
    given = [in_layout(bool(by), *shape) for by, shape in zip(layouts, shapes, strict=True)]
    mask = [bool(wanted) for wanted in mask]
    args = *given, [4], *HOW, mask
    found = kernels.pointwise_backward(*args)
    expected = torch.ops.aten.convolution_backward.default(*args)
    assert [x is not None for x in found] == mask
    for wanted, a, b in zip(mask, found, expected, strict=True):
        if wanted and layouts[0] == layouts[1]:
            hold_layouts(a, b)
        elif wanted:  # a trial sees that PyTorch returns it in another layout
            torch.testing.assert_close(a, b)


def test_operators_are_one_call_to_executors_that_fuse() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def f(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
        y = kernels.pointwise(x, w, None, *HOW)
        back = kernels.pointwise_backward(g, x, w, [4], *HOW, [True, True, True])
        return y, back, kernels.bmm(x.flatten(2), g.flatten(2).mT)

    graph = make_fx(f)(torch.randn(2, 6, 5, 7), torch.randn(4, 6, 1, 1), torch.randn(2, 4, 5, 7))
    names = [str(n.target) for n in graph.graph.nodes if str(n.target).startswith("tj_onednn")]
    assert names == [f"tj_onednn.{n}.default" for n in ("images", "images", "pixels", "bmm")]

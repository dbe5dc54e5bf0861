"""Metadata of fake results equal those of kernels, for arguments of two data types."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.op_db import full_name
from tj_conformance.sampling import FULL
from tj_conformance.sweep.sample import samples
from tj_torch.ops.fakes.modes import corrected_fake_kernels, fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

EVERY = 1 if FULL else 8
HALVES = (torch.bfloat16, torch.float16)

UNUSED = {("aten._embedding_bag.default", 1), ("aten._sparse_mm_reduce_impl.default", 1)}
"""Results with other sizes than fake ones, which nothing reads but the backward's kernel."""

aten = torch.ops.aten


def metadata(x: Any) -> Any:
    return (x.dtype, tuple(x.shape), x.device) if isinstance(x, torch.Tensor) else None


def mixed(args: tuple[Any, ...], kwargs: Any) -> Iterator[tuple[list[torch.Tensor], Any]]:
    """Arguments of which the first tensor, all others or all are in half precision.

    With the floating-point tensors among them.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [
        i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.is_floating_point()
    ]
    for half, chosen in itertools.product(HALVES, (places[:1], places[1:], places)):
        if not chosen:
            continue
        made = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in leaves]
        for i in places:
            made[i] = made[i].to(half if i in chosen else made[i].dtype).requires_grad_()
        yield [made[i] for i in places], pytree.tree_unflatten(made, spec)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("op", op_db[3::EVERY] if EVERY > 1 else op_db, ids=full_name)
def test_fake_kernels_say_the_types_of_real_ones(op: Any, comparing: Any) -> None:
    if torch.float32 not in op.supported_dtypes("cpu"):
        pytest.skip("float32 has no kernel on CPUs")
    both = comparing(metadata, UNUSED)
    for sample in samples(op, torch.float32, 8):
        for inputs, (args, kwargs) in mixed(sample.args, sample.kwargs):
            # Most operators refuse two types, and are none of those that this is about.
            with both, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    made = pytree.tree_leaves(op.op(*args, **kwargs))
                    outputs = [x for x in made if getattr(x, "requires_grad", False)]
                    tangents = [torch.ones_like(x) for x in outputs]
                    torch.autograd.grad(outputs, inputs, tangents, allow_unused=True)
                except Exception:
                    continue
    assert not both.found


def batch_norms() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """All batch norms, with parameters or statistics of the input's type, or of float32."""
    for of_input in (torch.float32, *HALVES):
        types = dict.fromkeys((of_input, torch.float32))
        for running, parameter in itertools.product(types, (None, *types)):
            yield from batch_norms_of(of_input, running, parameter)


def batch_norms_of(
    of_input: torch.dtype, running: torch.dtype, parameter: torch.dtype | None
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    x = torch.randn(3, 4, 5, dtype=of_input)
    weight = None if parameter is None else torch.ones(4, dtype=parameter)
    statistics = torch.zeros(4, dtype=running), torch.ones(4, dtype=running)
    for training in (True, False):
        for func in (
            aten.native_batch_norm.default,
            aten._native_batch_norm_legit.default,
            aten._native_batch_norm_legit_functional.default,
        ):
            yield func, (x, weight, weight, *statistics, training, 0.1, 1e-5)
    # In evaluation PyTorch reads the missing statistics, and crashes.
    yield aten._native_batch_norm_legit.no_stats, (x, weight, weight, True, 0.1, 1e-5)
    for func in (
        aten._native_batch_norm_legit_no_training.default,
        aten._batch_norm_no_update.default,
        aten._batch_norm_with_update.default,
        aten._batch_norm_with_update_functional.default,
    ):
        yield func, (x, weight, weight, *statistics, 0.1, 1e-5)


def test_batch_norms_of_two_types(faked: Any) -> None:
    compared = 0
    for func, args in batch_norms():
        try:
            result = func(*args)
        except RuntimeError:  # other types than the kernel takes
            continue
        said = faked(func, args, {})
        if said is None:  # fake kernels refuse no weight
            assert args[1] is None
            continue
        compared += 1
        assert list(map(metadata, said)) == list(map(metadata, result)), (func, args[0].dtype)
    assert compared > 80


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")  # 2.15
def test_calls_of_two_types(faked: Any) -> None:
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.bool)
    types += (torch.complex64, torch.complex128)
    rows = [torch.ones(3, dtype=dtype) for dtype in types]
    compared = 0
    for x, y in itertools.product([*rows, *(row[0] for row in rows)], repeat=2):
        loss = (aten.soft_margin_loss.default, (x, y, 1))
        gradient = (aten.soft_margin_loss_backward.default, (x.sum(), x, y, 1))
        for func, args in (loss, gradient, (aten.ldexp.Tensor, (x, y))):
            try:
                result = func(*args)
            except RuntimeError:  # no kernel for these
                continue
            compared += 1
            assert metadata(faked(func, args, {})) == metadata(result), (func, x.dtype, y.dtype)
    assert compared > 200


PRODUCTS = {
    "mm": lambda x, h: x @ h,
    "mv": lambda x, h: x @ h[0],
    "addmm": lambda x, h: torch.addmm(h, x, x),
    "linear": lambda x, h: torch.nn.functional.linear(x[None], h),
    "convolution": lambda x, h: torch.nn.functional.conv1d(x[None], h[:, :, None]),
    "integers": lambda x, h: x.long() @ x,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_two_types_raise(name: str) -> None:
    """PyTorch's fake kernels take them, in captures, too."""
    product, x = PRODUCTS[name], torch.ones(4, 4)
    with pytest.raises(RuntimeError):
        product(x, x.half())
    mode = FakeTensorMode()
    fake, half = mode.from_tensor(x), mode.from_tensor(x.half())
    several = pytest.raises(RuntimeError, match=r"several data types|should be the same")
    with corrected_fake_kernels(), mode, several:
        product(fake, half)


@pytest.mark.parametrize(
    "dtype", [None, torch.bool, torch.int64, torch.half, torch.float64, torch.float32]
)
def test_counts_with_weights(dtype: torch.dtype | None) -> None:
    """PyTorch 2.11's fake kernel makes integers of them all."""

    def f(x: torch.Tensor, weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.dtype]:
        y = torch.bincount(x, weights)
        return y * 2 if y.is_floating_point() else y, y.dtype

    x = torch.tensor([0, 1, 1, 3])
    weights = None if dtype is None else torch.tensor([1, 0, 3, 1]).to(dtype)
    g = tj.jit(f)
    expected, found = f(x, weights), g(x, weights)
    assert found[1] is expected[1]
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)


def test_what_a_mode_does_not_know_is_left_to_others() -> None:
    """As a layer norm whose parameters are of a tensor subclass."""
    mode, x = fake_mode(), TwoTensor(torch.ones(2, 4), torch.ones(2, 4))
    with mode:
        out, mean, _ = aten.native_layer_norm(mode.from_tensor(x), [4], None, None, 1e-5)
    assert (type(out), mean.shape) == (TwoTensor, (2, 1))

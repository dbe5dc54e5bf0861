"""Programs with functions inside that are left to PyTorch's autograd."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.regions import DECLINED, Program, results
from tj_conformance.oracle.versions import left_to_this_version
from tj_suites.gradients.regions import assert_equal
from torch._higher_order_ops.map import map as torch_map

pytestmark = pytest.mark.sampled(4)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("f", DECLINED, ids=lambda f: f.__name__)
def test_what_is_left_to_pytorch(f: Program) -> None:
    jitted = tj.jit(f)
    for size in (1.0, -1.0):
        assert_equal(results(jitted, size), results(f, size))
    if not left_to_this_version(tj.stats(jitted).fallbacks):
        assert DECLINED[f] in str(tj.explain(jitted).declined)


@pytest.mark.parametrize("padding", [None, 0, -1])
def test_sparse_gradients(padding: int | None) -> None:
    """A sparse gradient stays one, though the weight's strides are of a dense one."""
    table = torch.nn.Embedding(10, 4, padding_idx=padding, sparse=True)
    index = torch.tensor([1, 0, 3, 3, 9])
    found = []
    for f in (table, tj.jit(table)):
        (f(index) * 2).sum().backward()
        found.append(table.weight.grad)
        table.weight.grad = None
    assert [g.layout for g in found if g is not None] == [torch.sparse_coo] * 2
    assert torch.equal(*(g.to_dense() for g in found if g is not None))


def test_the_result_of_map_is_a_view_as_in_eager() -> None:
    """PyTorch's `map` is a custom Function whose result is a view: it must not be written."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch_map(lambda row: row.sin() * 2, x)

    for rows in (1, 3):
        x = torch.randn(rows, 4, requires_grad=True)
        for function in (f, tj.jit(f)):
            found = function(x)
            assert found._base is not None
            assert found._base.shape == (rows * 4,)
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                found.mul_(2)
            (gradient,) = torch.autograd.grad(function(x).sum(), x)
            assert torch.equal(gradient, 2 * x.cos())

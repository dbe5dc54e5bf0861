"""Facts of PyTorch on which checks of shared memory, and version counters, rely."""

from __future__ import annotations

import gc

import torch
from tj_torch.runtime.counters import bump_versions


def test_a_live_storage_is_one_object() -> None:
    """`dispatch_on_aliasing` counts distinct objects."""
    x = torch.ones(6)
    same = [x, x[2:], x.view(2, 3), x.detach(), torch.nn.Parameter(x), x.as_strided((2,), (3,))]
    assert len(set(map(torch.Tensor.untyped_storage, same))) == 1
    numbers = {id(x.untyped_storage())}
    gc.collect()  # no one but PyTorch holds the object
    assert len({*map(id, map(torch.Tensor.untyped_storage, same))} | numbers) == 1
    others = [torch.ones(6) for _ in range(50)]
    assert len(set(map(torch.Tensor.untyped_storage, [*same, *others]))) == 51
    x.untyped_storage().resize_(0)
    empty = [torch.ones(0), torch.ones(0), x]
    assert len(set(map(torch.Tensor.untyped_storage, empty))) == 3


def test_versions_of_inference_tensors_are_left_out() -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    plain, other = torch.ones(2), torch.ones(2)
    bump_versions([plain, inference, other], 3)
    assert (plain._version, other._version) == (3, 3)
    assert inference.is_inference()

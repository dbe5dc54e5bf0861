"""Operators of executors' own: their tags, values and fake results."""

from __future__ import annotations

import torch
from tj_torch.extend import opaque_operator
from torch._subclasses.fake_tensor import FakeTensorMode


def test_an_operator_is_one_call() -> None:
    library = torch.library.Library("tj_opaque_test", "DEF")
    twice = opaque_operator(
        library,
        "twice(Tensor x) -> Tensor",
        lambda x: x.clone() + x,
        torch.empty_like,
        torch.Tag.flexible_layout,
    )
    x = torch.ones(2, 3)
    assert torch.equal(twice(x), torch.full((2, 3), 2.0))
    assert torch.Tag.flexible_layout in twice.tags
    with FakeTensorMode() as mode:
        assert twice(mode.from_tensor(x)).shape == (2, 3)

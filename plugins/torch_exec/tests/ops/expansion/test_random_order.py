"""Random numbers of tensors whose memory has another order than their indices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tj_torch.ops.expansion.expander import expand
from tj_torch.ops.expansion.replay import replay
from tj_torch.ops.values.convert import tensor_proxy

CALLS: dict[str, tuple[Callable[..., torch.Tensor], tuple[object, ...]]] = {
    "dropout": (F.dropout, (0.5, True)),
    "alpha dropout": (F.alpha_dropout, (0.5, True)),
    "in place": (torch.Tensor.bernoulli_, (0.5,)),
    "not in place": (torch.bernoulli, (0.5,)),
    "a method": (torch.Tensor.bernoulli, (0.5,)),
    "uniform": (torch.Tensor.uniform_, ()),
}

ARGUMENTS: dict[str, Callable[[], torch.Tensor]] = {
    "rows": lambda: torch.rand(4, 6),
    "columns": lambda: torch.rand(6, 4).t(),
    "permuted": lambda: torch.rand(3, 4, 5).permute(2, 0, 1),
    "with gaps": lambda: torch.rand(3, 4, 10)[:, :, ::2],
    "permuted, with gaps": lambda: torch.rand(3, 4, 10).permute(2, 0, 1)[:, ::2],
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("given", ARGUMENTS)
@pytest.mark.parametrize("name", CALLS)
def test_a_body_draws_the_same_numbers_in_the_same_places(name: str, given: str) -> None:
    function, more = CALLS[name]
    x = ARGUMENTS[given]()
    expansion = expand(function, (tensor_proxy("x", x), *more))
    assert expansion.body is not None
    found = []
    for run in (
        lambda: function(torch.empty_strided(x.shape, x.stride()).copy_(x), *more),
        lambda: replay(expansion.body, {0: x})[0],
    ):
        torch.manual_seed(0)
        found.append((run(), torch.rand(1)))
    (theirs, after), (mine, after_mine) = found
    assert torch.equal(mine, theirs)
    assert torch.equal(after_mine, after)

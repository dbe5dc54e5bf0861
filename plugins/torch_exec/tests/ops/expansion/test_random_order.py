"""Random numbers of tensors whose memory has another order than their indices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

Program = Callable[[torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Program] = {
    "dropout": lambda x: F.dropout(x.transpose(0, 1), 0.5, True) + 1,
    "alpha dropout": lambda x: F.alpha_dropout(x.permute(2, 0, 1), 0.5, True),
    "with gaps": lambda x: F.dropout(x.permute(2, 0, 1)[:, ::2], 0.3, True) * 2,
    "channels last": lambda x: F.dropout(x[None].to(memory_format=torch.channels_last), 0.5, True),
    "in place": lambda x: x.transpose(0, 2).clone().bernoulli_(0.5) + x.transpose(0, 2),
    "in place, a view": lambda x: torch.zeros(4, 6).t()[1:].bernoulli_(0.5) + x.sum(),
    "not in place": lambda x: torch.bernoulli(x.transpose(0, 1), 0.5) + 1,
    "a method": lambda x: x.transpose(0, 1).bernoulli(0.5) + 1,
    "uniform": lambda x: torch.empty_like(x.transpose(0, 1)).uniform_() * 2,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbols"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True], ids=["", "gradients"])
def test_the_same_numbers_in_the_same_places(name: str, grad: bool, dynamic: bool) -> None:
    """Also where an executor has taken the call apart: `example_fuser` takes what is around it."""
    f, found = PROGRAMS[name], []
    for plugins in (None, ["example_fuser", "autograd", "torch"]):
        session = None if plugins is None else tj.Session(plugins, overrides={"check": 2})
        g = f if session is None else tj.jit(f, session=session, dynamic=dynamic)
        for shape in ((3, 4, 6), (5, 2, 8)):
            torch.manual_seed(0)
            x = torch.randn(shape, requires_grad=grad)
            result = g(x).detach()
            found.append((result, result.stride(), torch.rand(1)))
    for theirs, mine in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(mine[0], theirs[0])
        assert mine[1] == theirs[1]
        assert torch.equal(mine[2], theirs[2])

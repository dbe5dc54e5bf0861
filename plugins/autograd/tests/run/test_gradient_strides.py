"""Gradients have eager's strides, whichever backward program computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F

Program = Callable[[torch.Tensor], Any]


def gradient(f: Program, x: torch.Tensor, *tangents: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    outs = f(x)
    (found,) = torch.autograd.grad(outs if isinstance(outs, tuple) else (outs,), x, tangents)
    return found


TANGENTS = {
    "transposed": torch.randn(5, 4).t(),
    "expanded": torch.randn(()).expand(4, 5),
    "of equal rows": torch.randn(5).expand(4, 5),
    "with gaps": torch.randn(4, 10)[:, ::2],
}

PROGRAMS: dict[str, Program] = {
    "its tangent itself": lambda x: x + 1,
    "computed": lambda x: (x * 2).sin(),
    "a view": lambda x: x.t().contiguous().t() * 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_there_are_more_layouts_than_backward_programs(name: str) -> None:
    f = PROGRAMS[name]
    jitted, x = tj.jit(f, plugins=["torch", "autograd"]), torch.randn(4, 5)
    for n in range(3, 12):
        gradient(jitted, x, torch.randn(4, 5 * n)[:, ::n])
    for tangent in TANGENTS.values():
        found, expected = gradient(jitted, x, tangent), gradient(f, x, tangent)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_forward_has_not_saved_what_other_tangents_need() -> None:
    def f(x: torch.Tensor) -> Any:
        y = F.local_response_norm(x * 1, 2)
        return y, (y + 1) * y

    session = tj.Session(
        ["conformance", "torch", "autograd"], overrides={"conformance": {"fuse": True}}
    )
    jitted, x = tj.jit(f, session=session), torch.randn(9).as_strided((1, 3, 3), (1, 1, 3))
    for tangents in (torch.randn(2, 1, 3, 3), torch.randn(2, 1, 3, 3).mT):
        found, expected = gradient(jitted, x, *tangents), gradient(f, x, *tangents)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


def test_sizes_are_symbols() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.movedim(-1, 0) * 2
        return y, (y + 1) * y

    jitted = tj.jit(f, plugins=["torch", "autograd"], dynamic=True)
    for n in (3, 4, 6):
        x = torch.randn(n, 4, 5)
        for tangents in (torch.randn(2, 5, n, 4), torch.randn(2, n, 4, 5).movedim(-1, 1)):
            found, expected = gradient(jitted, x, *tangents), gradient(f, x, *tangents)
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert tj.stats(jitted).misses == 1
    made = [name for name in tj.explain(jitted).others if name.startswith("backward_")]
    assert len(made) == 1


def test_a_tangent_of_symbolic_sizes_keeps_the_stride_of_a_size_of_one() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.transpose(0, 1) * 2
        return y, y.flatten(0)

    jitted = tj.jit(f, plugins=["torch", "autograd"])
    for shape in ((3, 5, 3), (5, 2, 3), (2, 1, 2), (3, 1, 5)):
        x = torch.randn(shape[::-1]).permute(2, 1, 0)
        tangents = [torch.ones_like(y) for y in f(x)]
        found, expected = gradient(jitted, x, *tangents), gradient(f, x, *tangents)
        assert found.stride() == expected.stride()

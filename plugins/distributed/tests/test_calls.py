"""Collectives in the spellings of users: captured, or one warning with the remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.distributed.nn.functional as differentiable
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def _group() -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def asynchronous(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = distributed.all_reduce(y, async_op=True)
    z = x.sin()
    work.wait()
    return y + z


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = differentiable.all_reduce(x * 2) + 1
    return found


def all_gather(x: torch.Tensor) -> torch.Tensor:
    return torch.cat(differentiable.all_gather(x * 2)) + 1


def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = differentiable.reduce_scatter(torch.empty_like(x), [x * 2]) + 1
    return found


def into_a_list(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, x * 2)
    return torch.cat(parts) + 1


def run(f: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, list[str]]:
    """``f``, jitted, and tj's warnings in three calls, whose results are eager's."""
    g = tj.jit(f, plugins=["torch", "autograd", "distributed"])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            one, two = (torch.arange(3.0, requires_grad=f is not asynchronous) for _ in range(2))
            result, expected = g(one), f(two)
            assert torch.equal(result, expected)
            if one.requires_grad and f is not into_a_list:
                result.sum().backward()
                expected.sum().backward()
                assert one.grad is not None
                assert two.grad is not None
                assert torch.equal(one.grad, two.grad)
    return g, [str(w.message) for w in said if issubclass(w.category, tj.TjWarning)]


REFUSED = pytest.mark.skipif(
    not hasattr(differentiable, "_not_supported_under_compile"),
    reason="this PyTorch does not refuse to compile these functions",
)


@pytest.mark.parametrize(
    "f",
    [
        asynchronous,
        *(pytest.param(f, marks=REFUSED) for f in (all_reduce, all_gather, reduce_scatter)),
    ],
)
def test_one_warning_names_the_remedy(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    g, said = run(f)
    assert len(said) == 1
    assert "torch.distributed._functional_collectives" in said[0]
    assert f"in {f.__name__}: " in said[0], "the user's line"
    (fallback,) = tj.stats(g).fallbacks
    assert fallback.reason in said[0]


def test_a_gather_into_a_list_is_captured() -> None:
    with torch.no_grad():
        g, said = run(into_a_list)
    assert said == []
    assert "all_gather" in str(tj.last_trace(g))
    assert "distributed.begin(" in str(tj.last_trace(g))


MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]


@pytest.mark.parametrize("mode", MODES)
def test_waits_are_in_the_modes_of_their_program(mode: Callable[[], Any]) -> None:
    """Another thread waits, and gloo's wait for a reduction to shards writes to the result."""
    operators = torch.ops._c10d_functional
    start, wait = operators.reduce_scatter_tensor, operators.wait_tensor
    world = distributed.group.WORLD
    assert world is not None

    def f(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = wait(start(x * 2, "sum", 1, world.group_name))
        return found

    g = tj.jit(f, plugins=["torch", "distributed"])
    with mode():
        result, expected = g(torch.arange(3.0)), f(torch.arange(3.0))
    assert torch.equal(result, expected)
    assert result.is_inference() == expected.is_inference()

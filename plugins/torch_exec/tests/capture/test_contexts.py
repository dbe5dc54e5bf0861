"""Context managers that a program enters and leaves without ``with``, or keeps in an object."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.sampled(16)

Make = Callable[[], Any]

CONTEXTS: dict[str, Make] = {
    "no_grad": torch.no_grad,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference_mode": torch.inference_mode,
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
}


def by_hand(make: Make, x: torch.Tensor) -> Any:
    c = make()
    c.__enter__()
    y = x @ x
    c.__exit__(None, None, None)
    return y, x @ x


def with_a_break_inside(make: Make, x: torch.Tensor) -> Any:
    c = make()
    c.__enter__()
    try:
        y = x @ x
        print(end="")
        z = x @ x
    finally:
        c.__exit__(None, None, None)
    return y, z, x @ x


def in_an_exit_stack(make: Make, x: torch.Tensor) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(make())
        y = x @ x
        print(end="")
        z = x @ x
    return y, z, x @ x


def in_an_object(make: Make, x: torch.Tensor) -> Any:
    held = SimpleNamespace(context=make())
    held.context.__enter__()
    y = x @ x
    held.context.__exit__(None, None, None)
    return y, x @ x


def made_before_a_break(make: Make, x: torch.Tensor) -> Any:
    c = make()
    print(end="")
    c.__enter__()
    y = x @ x
    c.__exit__(None, None, None)
    return y, x @ x


def modes() -> tuple[object, ...]:
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    flash = torch.backends.cuda.flash_sdp_enabled()
    return grad, inference, torch.is_autocast_enabled("cpu"), flash


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize(
    "f", [by_hand, with_a_break_inside, in_an_exit_stack, in_an_object, made_before_a_break]
)
def test_modes_are_as_in_eager_inside_and_after(f: Callable[..., Any], name: str) -> None:
    x, make, before = torch.full((2, 2), 0.3, requires_grad=True), CONTEXTS[name], modes()
    jitted = tj.jit(f)
    seen = []
    for g in (f, jitted, jitted):
        results = g(make, x)
        seen.append([(r.requires_grad, r.dtype, r.is_inference()) for r in results])
        assert modes() == before
    assert seen[1:] == seen[:1] * 2


@pytest.mark.probe
def test_captures_leave_autocasts_cache_to_other_threads() -> None:
    """A thread that empties the cache frees what is in it, and may wait for a capture then."""
    seen = []

    @torch.library.custom_op("tj_tests::cached", mutates_args=())
    def cached(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @cached.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_autocast_cache_enabled())
        return x.clone()

    def f(x: torch.Tensor) -> torch.Tensor:
        return cached(x) + 1

    with torch.autocast("cpu"):
        assert torch.equal(tj.jit(f)(torch.ones(2)), torch.full((2,), 2.0))
        assert torch.is_autocast_cache_enabled()
    assert seen
    assert not any(seen)


def test_inference_mode_is_left_in_a_part_of_a_program(lenient: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.inference_mode(False):
            y = x * 2
        print(end="")
        with torch.inference_mode():
            z = x + 1
        return y, z, x * 3

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph breaks
        jitted = tj.jit(program)
        for mode in (True, False, True):
            with torch.inference_mode(mode):
                x = torch.ones(2)
                expected = [y.is_inference() for y in program(x)]
                assert [y.is_inference() for y in jitted(x)] == expected

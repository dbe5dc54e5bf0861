"""Results that are copies of arguments, or of one value: each is in memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_inductor.adapter.modules import apart, uncounted

Program = Callable[..., Any]


def filled(x: torch.Tensor) -> Any:
    """Inductor returns its argument: a bug that torch.compile has, too (docs/scoreboard.md)."""
    return torch.empty_like(x).copy_(x).view(-1).clone(), x.neg()


def of_one_value(x: torch.Tensor) -> Any:
    made = x.new_empty_strided((4, 6), (6, 1)).copy_(x + 1)
    return made.view(-1).clone(), made.clone(), made * 2


def transposed(x: torch.Tensor) -> Any:
    return x.t().clone(), x.abs(), x.clone().view(24), x.view(-1).clone()


def of_equal_calls(x: torch.Tensor) -> Any:
    """Inductor calls a kernel of PyTorch's once for both."""
    return x.sort(1).values, x.sort(1).values, x.sort(1).indices * x


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbols"])
@pytest.mark.parametrize(
    "f", [filled, of_one_value, transposed, of_equal_calls], ids=lambda f: f.__name__
)
def test_results_are_in_memory_of_their_own(f: Program, dynamic: bool, fusing: Any) -> None:
    jitted = fusing(f, dynamic=dynamic)
    for _ in range(3):  # the first run is held against the trace
        x = torch.randn(4, 6)
        before = x.clone()
        outs = jitted(x)
        torch.testing.assert_close(outs, f(before))
        places = {t.untyped_storage().data_ptr() for t in (x, *outs)}
        assert len(places) == 1 + len(outs)
        for out in outs:
            out.zero_()
        assert torch.equal(x, before)


def test_parts_that_pytorch_says_are_no_views_are_in_memory_of_their_own(fusing: Any) -> None:
    """A recurrent cell splits its gates so, and keeps them for the backward."""
    network = torch.nn.LSTM(6, 3, batch_first=True).double()
    x = torch.randn(4, 1, 6, dtype=torch.float64, requires_grad=True)
    found = [
        torch.autograd.grad(out := f(x)[0], x, torch.ones_like(out))[0]
        for f in (fusing(network), network)
    ]
    torch.testing.assert_close(*found)


def test_what_is_apart_already_is_not_copied() -> None:
    x, made = torch.ones(3), [torch.ones(3), torch.ones(3)]
    kept = apart(lambda box: made, [0, 1])([x])
    assert kept[0] is made[0]
    assert kept[1] is made[1]
    one, two, three = apart(lambda box: [x, made[0], made[0].view(3)], [0, 2])([x, 5])
    assert (one is x, two is made[0], three is made[0]) == (False, True, False)
    assert len({t.untyped_storage().data_ptr() for t in (x, one, two, three)}) == 4


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_copied_keeps_its_strides(mode: Any) -> None:
    with mode():
        gates = torch.arange(12.0).view(2, 6)
        one, two = apart(lambda box: list(gates.split(3, 1)), [0, 1])([])
    assert (one.stride(), two.stride()) == ((6, 1), (6, 1))
    assert two.tolist() == [[3, 4, 5], [9, 10, 11]]
    assert two.is_inference() or two._version == 0
    assert not two._is_view()


def test_what_is_expanded_is_copied_as_such() -> None:
    one = torch.arange(3.0)[::2].expand(4, 2)
    kept, copied = apart(lambda box: [one, one], [0, 1])([])
    assert (copied.stride(), copied._version, copied.tolist()) == ((0, 2), 0, one.tolist())
    assert not copied._is_view()
    assert kept.untyped_storage().data_ptr() != copied.untyped_storage().data_ptr()


def multiplied(x: torch.Tensor) -> Any:
    low = x.bfloat16()
    return low @ low.t(), (low + 1) @ low.t(), (low @ low.t()).float() + 1


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbols"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_results_count_no_write(mode: Any, dynamic: bool, fusing: Any) -> None:
    """Products are written to memory that was made before them."""
    jitted = fusing(multiplied, dynamic=dynamic)
    for n in (4, 6):
        x = torch.randn(n, 5)
        with mode():
            outs = jitted(x)
            torch.testing.assert_close(outs, multiplied(x))
        if mode is not torch.inference_mode:
            assert [out._version for out in outs] == [0, 0, 0]


def test_the_version_of_a_written_argument_is_not_changed() -> None:
    source = "        mm(a, b, out=buf0)\n        return (arg0_1, buf0, view(buf0, 1), )\n"
    x, made = torch.ones(3).add_(1), torch.ones(3).add_(1)
    assert [t._version for t in uncounted(lambda box: box, source)([x, made, made])] == [1, 0, 0]
    assert uncounted(list, source.replace("out=", "")) is list

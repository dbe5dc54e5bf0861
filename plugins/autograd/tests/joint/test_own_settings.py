"""Backwards that users wrote: constants, forward mode, writes and state of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_conformance.gradients.own import WAYS
from tj_conformance.oracle.compare import assert_equal
from tj_suites.gradients import situations
from tj_suites.gradients.marks import OWN_BACKWARDS
from tj_suites.gradients.situations import Tripled, X, by_constant_, plain
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from tj_suites.gradients.own_backwards import Program

pytestmark = OWN_BACKWARDS


@pytest.mark.parametrize("way", WAYS)
def test_a_constant_that_changes_is_an_error_and_no_old_number(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = WAYS[way](lambda x: by_constant_(x))(X.clone().requires_grad_())
    monkeypatch.setattr(situations, "RATE", 4.0)
    with pytest.raises(tj.TjError, match=r"RATE, .* was 3.0 in the forward, and is 4.0"):
        y.sum().backward()


# --------------------------------------------------------------------------- what else may happen


class TwoWays(Tripled):
    """Has a derivative of its own for each mode of differentiation."""

    @staticmethod
    def jvp(ctx, t):
        return t * 5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_forward_mode_is_pytorchs(needs: bool, way: str) -> None:
    def dual(f: Program) -> Any:
        with forward_ad.dual_level():
            x = X.clone().requires_grad_(needs)
            given = forward_ad.make_dual(x, X.flip(0))
            return [t.detach() for t in forward_ad.unpack_dual(f(given))]

    for f in (lambda x: x.sin() * 2, lambda x: TwoWays.apply(x)):
        compiled = WAYS[way](f)
        compiled(X.clone().requires_grad_(needs))  # before there is a level, and after it
        assert_equal(dual(compiled), dual(f))
        assert_equal(plain(compiled), plain(f))
        torch._dynamo.reset()


@torch.library.custom_op("tj_tests::clearing", mutates_args=())
def clearing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


def clear(ctx, g):
    ctx.x.zero_()
    return g * ctx.saved_tensors[0], g * 3


def keep_both(ctx, inputs, output):
    ctx.x, w = inputs
    ctx.save_for_backward(w)


clearing.register_fake(lambda x, w: torch.empty_like(x))


clearing.register_autograd(clear, setup_context=keep_both)


@pytest.mark.parametrize("way", WAYS)
def test_a_write_in_the_backward_of_a_custom_operator(way: str) -> None:
    def run(f: Program) -> Any:
        x, w = X.clone().requires_grad_(), X.flip(0).requires_grad_()
        given = x * 2
        f(given, w).sum().backward()
        return given.detach(), x.grad, w.grad

    for f in (lambda a, w: clearing(a, w), lambda a, w: clearing(a.sin(), w) + a):
        assert_equal(run(WAYS[way](f)), run(f))
        torch._dynamo.reset()


@torch.library.custom_op("tj_tests::scaled_by_rate", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


SETTINGS = {"rate": 1.0}


def _note_rate(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.rate = SETTINGS["rate"]


scaled.register_fake(torch.empty_like)


scaled.register_autograd(lambda ctx, g: g * SETTINGS["rate"] * ctx.rate, setup_context=_note_rate)


def test_state_that_a_custom_operator_reads_is_that_of_the_run() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return scaled(x)

    jitted = tj.jit(f)
    for before, after in ((1.0, 2.0), (3.0, 4.0), (5.0, 5.0)):
        x = torch.ones(3, requires_grad=True)
        SETTINGS["rate"] = before
        out = jitted(x)
        SETTINGS["rate"] = after
        out.backward(torch.ones(3))
        assert x.grad is not None
        assert x.grad.tolist() == [before * after] * 3
    assert tj.stats(jitted).misses == 1
    assert "it reads SETTINGS" in str(tj.last_trace(jitted, stage="JOINT").history[-1].changes)

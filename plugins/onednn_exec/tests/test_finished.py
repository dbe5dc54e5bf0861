"""Finished programs on disk whose products run in oneDNN: the choice is kept with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

PLUGINS = ("onednn", "inductor", "autograd", "torch")


def session(**options: Any) -> tj.Session:
    overrides = {"check": 2, "strict": True, "onednn": {"choose": "always"} | options}
    return tj.Session(PLUGINS, overrides=overrides)


def step(f: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(16, 32, requires_grad=True), torch.randn(24, 32, requires_grad=True)
    loss = F.gelu(F.linear(x, w)).pow(2).sum()
    got = f(x, w)
    torch.testing.assert_close(got, loss, rtol=1e-4, atol=1e-4)
    return [got.detach(), *torch.autograd.grad(got, (x, w))]


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w)).pow(2).sum()


def operations(g: Any, which: str) -> list[str]:
    trace = tj.last_trace(g, which)  # type: ignore[arg-type]
    bodies = [c.body.calls if c.body is not None else () for c in trace.calls]
    inside = [inner.symbol.qualname for body in bodies for inner in body]
    return [*(call.symbol.qualname for call in trace.calls), *inside]


@pytest.mark.slow
def test_products_in_regions_and_alone_are_oneDNNs_again() -> None:
    runs = []
    for _ in range(2):
        g = tj.jit(program, session=session())
        runs.append((step(g), operations(g, "forward"), operations(g, "backward"), tj.stats(g)))
    (one, *shown, first), (two, *again, second) = runs
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert shown == again
    assert any(name.startswith("onednn.") for name in shown[0])
    assert any(name.startswith("onednn.") for name in shown[1])
    assert (first.program_kept, second.program_kept) == (0, 2)


def test_a_choice_made_of_unstable_times_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from tj_onednn import choice, timing

    def found(stable: bool) -> int:
        times = timing.Times(1.0, 0.5, stable)
        monkeypatch.setattr(choice, "compare", lambda *_: times)
        g = tj.jit(program, session=session(choose="measure", minimum=1))
        step(g)
        return tj.stats(g).program_kept

    assert [found(False), found(False), found(True), found(True)] == [0, 0, 0, 2]


def test_the_number_of_threads_counts() -> None:
    threads = torch.get_num_threads()
    try:
        for count, kept in ((threads, 0), (threads + 1, 0), (threads, 2)):
            torch.set_num_threads(count)
            g = tj.jit(program, session=session())
            step(g)
            assert tj.stats(g).program_kept == kept
    finally:
        torch.set_num_threads(threads)


def test_frozen_weights_are_packed_in_each_session(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).eval()
    x = torch.randn(16, 32)
    for kept in (0, 1):
        g = tj.jit(net, session=session(freeze=True))
        with torch.no_grad():
            torch.testing.assert_close(g(x), net(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(g(x * 2), net(x * 2), rtol=1e-4, atol=1e-4)
        assert tj.stats(g).program_kept == kept
        assert any("onednn_packed" in name for name in operations(g, "forward"))
    with torch.no_grad():
        net[0].weight.add_(1)
        torch.testing.assert_close(g(x), net(x), rtol=1e-4, atol=1e-4)

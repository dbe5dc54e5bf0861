"""Packages of programs with layers in int8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_onednn.int8 import cache, kernels, layers

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = [(), pytest.param(("inductor",), marks=pytest.mark.slow)]


@pytest.mark.parametrize("before", BEFORE)
def test_weights_are_rounded_where_a_package_is_loaded(
    before: tuple[str, ...], rounding: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 32))
    jitted, x = rounding(net, *before), torch.randn(3, 64)
    file = tmp_path / "net.tjp"
    with torch.no_grad():
        tj.export(jitted, (x,)).save(file)
    made = []

    def quantise(*args: Any) -> Any:
        made.append(args)
        return kernels.quantise(*args)

    monkeypatch.setattr(cache, "quantise", quantise)
    loaded = tj.load(file)
    with torch.no_grad():
        for _ in range(3):
            assert 1e-5 < tj.compare(loaded, net, (x,)).worst.figures.relative < 0.02
        assert torch.equal(loaded(x), jitted(x))
        assert len(made) == 2 + 2  # by the package, and by the program in this process
        assert loaded.state_dict()["0.weight"].dtype == torch.float32
        net.load_state_dict({name: -value for name, value in net.state_dict().items()})
        loaded.load_state_dict(net.state_dict())
        assert 1e-5 < tj.compare(loaded, net, (x,)).worst.figures.relative < 0.02
        assert len(made) == 4 + 2


@pytest.mark.slow
def test_a_package_is_refused_where_sums_saturate(
    rounding: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jitted, file = rounding(torch.nn.Linear(64, 96)), tmp_path / "net.tjp"
    with torch.no_grad():
        tj.export(jitted, (torch.randn(3, 64),)).save(file)
    monkeypatch.setattr(layers, "sums_are_exact", lambda: False)
    layers.saturates.cache_clear()
    try:
        with pytest.raises(tj.TjError, match="cannot run here: sums of int8 products saturate"):
            tj.load(file)(torch.randn(3, 64))
    finally:
        layers.saturates.cache_clear()

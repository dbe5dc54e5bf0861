"""Networks that torchao has rounded to int8 run through the kernels of tj-onednn's layers."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_suites.packages.quantized import mlp, rows, weights

PLUGINS = ("onednn", "subclass", "autograd", "torch")
CLOSE = {torch.float32: 5e-3, torch.bfloat16: 2e-2}
"""Largest relative errors: activations in float32 are rounded to bfloat16."""


def jitted(network: torch.nn.Module, **options: Any) -> Any:
    overrides = {"check": 2, "strict": True, "onednn": options}
    return tj.jit(network, session=tj.Session(PLUGINS, overrides=overrides))


@pytest.mark.parametrize("dtype", CLOSE)
def test_weights_of_int8(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    torch.manual_seed(0)
    network = weights("Int8WeightOnlyConfig")().to(dtype)
    (x,) = rows()
    x = x[:4].to(dtype)
    fast = jitted(network, int8_weights=["*"])
    with torch.no_grad():
        found = tj.compare(fast, network, (x,)).worst.figures
    assert found.relative < CLOSE[dtype]
    symbols = [call.symbol.path for call in tj.last_trace(fast).calls]
    assert symbols.count("torch.ops.tj_int8.weights_only.default") == 2
    assert "torch.ops.tj_int8.quantise.default" not in symbols


@pytest.mark.parametrize("dtype", CLOSE)
def test_int8_products(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are torchao's own, which are calls of the same kernel, in the open."""
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    torch.manual_seed(0)
    network = weights("Int8DynamicActivationInt8WeightConfig")().to(dtype)
    (x,) = rows()
    fast = jitted(network, int8=["*"])
    with torch.no_grad():
        assert torch.equal(fast(x.to(dtype)), network(x.to(dtype)))
    symbols = [call.symbol.path for call in tj.last_trace(fast).calls]
    assert symbols.count("_int_mm.default") == 2


@pytest.mark.parametrize(
    "config", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"]
)
def test_errors_of_layers(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounded network and the one that it was made of have layers of the same names."""
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    (x,) = rows()
    torch.manual_seed(0)
    rounded = weights(config)()
    torch.manual_seed(0)
    network = mlp().eval()
    for run in (rounded, jitted(rounded)):
        with torch.no_grad():
            found = tj.compare(run, network, (x,), layers=True)
        assert [layer.output for layer in found.layers] == ["0", "1", "2"]
        first = found.first()
        assert first is not None
        assert first.output == "0"
        assert 1e-5 < first.figures.relative < 0.02

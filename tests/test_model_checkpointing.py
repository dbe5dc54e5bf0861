"""A transformers Llama with gradient checkpointing: gradients and recomputation as in eager."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.models import MODELS, step
from tj_conformance.oracle.compare import assert_equal

pytestmark = pytest.mark.sampled(10)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", reason="the model is transformers'")


def kernels(run: Callable[[], Any]) -> dict[str, int]:
    """Numbers of runs of PyTorch's products and products' gradients."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return {e.key: e.count for e in profile.key_averages() if e.key in ("aten::mm", "aten::silu")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
@pytest.mark.parametrize("reentrant", [False, True], ids=["saved_hooks", "reentrant"])
def test_gradient_checkpointing(reentrant: bool) -> None:
    """Gradients bit-equal to eager's, and layers really run again in the backward pass."""
    model = MODELS["llama"].build().train()
    model.config.use_cache = False  # else transformers logs a warning, which breaks the graph
    batch = MODELS["llama"].batch()
    plain = kernels(lambda: step(model, model, batch, 0))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    jitted = tj.jit(model)
    for seed in range(2):
        expected = step(model, model, batch, seed)
        assert_equal(step(model, jitted, batch, seed), expected)
    assert tj.stats(jitted).fallbacks == ()
    regions = [c for c in tj.last_trace(jitted).calls if c.subprograms]
    assert [c.symbol.name for c in regions] == ["utils.checkpoint.checkpoint"] * 2
    again = kernels(lambda: step(model, jitted, batch, 0))
    assert again == kernels(lambda: step(model, model, batch, 0))
    assert again["aten::mm"] > plain["aten::mm"]
    assert again["aten::silu"] == 2 * plain["aten::silu"]

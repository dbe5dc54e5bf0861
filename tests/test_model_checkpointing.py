"""A transformers Llama with gradient checkpointing: gradients and recomputation as in eager."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="the model is transformers'")


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


def step(model: Any, run: Any, tokens: torch.Tensor, seed: int) -> dict[str, Any]:
    """Loss, logits and gradients of one training step."""
    model.zero_grad()
    torch.manual_seed(seed)
    out = run(input_ids=tokens, labels=tokens)
    out.loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": out.loss.detach(), "logits": out.logits.detach(), **grads}


def kernels(run: Callable[[], Any]) -> dict[str, int]:
    """How often PyTorch's products and products' gradients ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return {e.key: e.count for e in profile.key_averages() if e.key in ("aten::mm", "aten::silu")}


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
@pytest.mark.parametrize("reentrant", [False, True], ids=["saved_hooks", "reentrant"])
def test_gradient_checkpointing(reentrant: bool) -> None:
    """Gradients bit-equal to eager's, and layers really run again in the backward pass."""
    model = llama().train()
    model.config.use_cache = False  # else transformers logs a warning, which breaks the graph
    tokens = torch.randint(0, 128, (2, 16))
    plain = kernels(lambda: step(model, model, tokens, 0))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    jitted = tj.jit(model)
    for seed in range(2):
        expected = step(model, model, tokens, seed)
        got = step(model, jitted, tokens, seed)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                got[name], value, rtol=0, atol=0, msg=lambda m, n=name: n + m
            )
    assert tj.stats(jitted).fallbacks == ()
    regions = [c for c in tj.last_trace(jitted).calls if c.regions]
    assert [c.symbol.name for c in regions] == ["utils.checkpoint.checkpoint"] * 2
    again = kernels(lambda: step(model, jitted, tokens, 0))
    assert again == kernels(lambda: step(model, model, tokens, 0))
    assert again["aten::mm"] > plain["aten::mm"]
    assert again["aten::silu"] == 2 * plain["aten::silu"]

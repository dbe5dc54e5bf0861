"""Transformers models at many sizes: one entry serves them, with eager's results and gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Session

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="the models are transformers'")


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


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else transformers logs a warning, which breaks the graph
    return model


def step(model: Any, run: Any, tokens: torch.Tensor, seed: int) -> dict[str, Any]:
    """Loss, logits and gradients of one training step."""
    model.zero_grad()
    torch.manual_seed(seed)
    out = run(input_ids=tokens, labels=tokens)
    out.loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": out.loss.detach(), "logits": out.logits.detach(), **grads}


SHAPES = [(2, 8), (3, 9), (4, 16), (2, 5), (5, 31)]


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_one_entry_serves_many_sizes(
    make: Callable[[], torch.nn.Module], dynamic: bool | None
) -> None:
    torch._dynamo.reset()
    model = make().eval()
    jitted = tj.jit(model, dynamic=dynamic)
    for shape in SHAPES:
        tokens = torch.randint(0, 128, shape)
        with torch.no_grad():
            expected = model(input_ids=tokens, use_cache=False).logits
            got = jitted(input_ids=tokens, use_cache=False).logits
        torch.testing.assert_close(got, expected)
    assert tj.stats(jitted).misses == (1 if dynamic else 2)
    assert tj.stats(jitted).fallbacks == ()
    trace = tj.last_traces(jitted)[0]
    shapes = [str(d) for c in trace.calls for p in c.flat_outs for d in getattr(p, "shape", ())]
    assert len([d for d in shapes if d.startswith("s")]) > 100
    unknown = {c.symbol.qualname for c in trace.calls if c.effects.ordered}
    assert unknown <= {"torch._C._log_api_usage_once"}


@pytest.mark.parametrize("make", [llama, gpt2])
def test_training_at_many_sizes(make: Callable[[], torch.nn.Module]) -> None:
    torch._dynamo.reset()
    model = make().train(False)
    jitted = tj.jit(model, dynamic=True)
    for seed, shape in enumerate(SHAPES[:3]):
        tokens = torch.randint(0, 128, shape)
        expected = step(model, model, tokens, seed)
        got = step(model, jitted, tokens, seed)
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, msg=lambda m, n=name: n + m)
    assert tj.stats(jitted).misses == 1
    assert tj.stats(jitted).fallbacks == ()


def test_a_second_capture_makes_no_expansions() -> None:
    session = Session(plugins=["torch"])
    tokens = torch.randint(0, 128, (3, 9))
    made = []
    for _ in range(2):
        torch._dynamo.reset()
        jitted = tj.jit(llama().eval(), session=session, dynamic=True)
        with torch.no_grad():
            jitted(input_ids=tokens, use_cache=False)
        made.append(tj.stats(jitted).memo_misses)
    assert made[0] > 20
    assert made[1] == 0

"""Transformers models with random weights: outputs, loss and all gradients equal to eager's."""

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

SIZES = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        intermediate_size=128, num_key_value_heads=2, max_position_embeddings=64, **SIZES
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # else transformers logs a warning, which breaks the graph
    return model


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(intermediate_size=128, max_position_embeddings=64, **SIZES)
    return transformers.BertForMaskedLM(config)


MODELS = [llama, gpt2, bert]


def build(make: Callable[[], torch.nn.Module]) -> Any:
    torch.manual_seed(0)
    return make()


def step(model: Any, run: Any, tokens: torch.Tensor, seed: int) -> dict[str, Any]:
    """Loss, logits and gradients of one training step."""
    model.zero_grad()
    torch.manual_seed(seed)
    out = run(input_ids=tokens, labels=tokens)
    out.loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": out.loss.detach(), "logits": out.logits.detach(), **grads}


@pytest.mark.parametrize("make", MODELS)
def test_forward(make: Callable[[], torch.nn.Module]) -> None:
    model = build(make).eval()
    jitted = tj.jit(model)
    tokens = torch.randint(0, 128, (2, 16))
    with torch.no_grad():
        expected = model(input_ids=tokens)
        got = jitted(input_ids=tokens)
        assert type(got) is type(expected)
        torch.testing.assert_close(got.logits, expected.logits, rtol=0, atol=0)
        jitted(input_ids=tokens)
    assert tj.stats(jitted).fallbacks == ()
    assert tj.stats(jitted).hits == 1


@pytest.mark.parametrize("dropout", [False, True], ids=["no_dropout", "dropout"])
@pytest.mark.parametrize("make", MODELS)
def test_train_step(make: Callable[[], torch.nn.Module], dropout: bool) -> None:
    model = build(make).train(dropout)
    jitted = tj.jit(model)
    tokens = torch.randint(0, 128, (2, 16))
    for seed in range(2):
        expected = step(model, model, tokens, seed)
        got = step(model, jitted, tokens, seed)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                got[name], value, rtol=0, atol=0, msg=lambda m, n=name: n + m
            )
    assert tj.stats(jitted).misses == 1
    assert tj.stats(jitted).fallbacks == ()


SHAPES = [(2, 8), (3, 9), (4, 16), (2, 5), (5, 31)]


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_one_entry_serves_many_sizes(
    make: Callable[[], torch.nn.Module], dynamic: bool | None
) -> None:
    torch._dynamo.reset()
    model = build(make).eval()
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
    model = build(make).train(False)
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
        jitted = tj.jit(build(llama).eval(), session=session, dynamic=True)
        with torch.no_grad():
            jitted(input_ids=tokens, use_cache=False)
        made.append(tj.stats(jitted).memo_misses)
    assert made[0] > 20
    assert made[1] == 0


def test_llama_with_a_cache_and_generate() -> None:
    model = build(llama).eval()
    jitted = tj.jit(model)
    tokens = torch.randint(0, 128, (2, 8))
    with torch.no_grad():
        for use in (model, jitted):
            use.generation_config.pad_token_id = 0
        expected = model.generate(tokens, max_new_tokens=6, do_sample=False)
        got = jitted.generate(tokens, max_new_tokens=6, do_sample=False)
    assert torch.equal(got, expected)
    assert tj.stats(jitted).calls == 6


@pytest.mark.parametrize("make", MODELS)
def test_every_call_shows_the_users_line(make: Callable[[], torch.nn.Module]) -> None:
    jitted = tj.jit(build(make).eval())
    with torch.no_grad():
        jitted(input_ids=torch.randint(0, 128, (2, 16)))
    trace = tj.last_trace(jitted)
    assert len(trace.calls) > 40
    for call in trace.calls:
        assert call.source is not None, call.symbol
        assert "transformers" in call.source.file
    # Dynamo records the logging of a module's first construction; it computes nothing.
    without = {call.symbol.qualname for call in trace.calls if call.body is None}
    assert without <= {"torch._C._log_api_usage_once"}


@pytest.mark.parametrize("make", MODELS)
def test_traces_read_back(make: Callable[[], torch.nn.Module]) -> None:
    jitted = tj.jit(build(make).eval(), check=2)
    with torch.no_grad():
        jitted(input_ids=torch.randint(0, 128, (2, 16)))
    for trace in tj.last_traces(jitted):
        again = tj.Trace.parse(str(trace), language=trace.language, constants=trace.constants())
        assert again == trace
        scope = dict(trace.constants())
        exec(str(trace), scope)
        assert callable(scope["computation"])

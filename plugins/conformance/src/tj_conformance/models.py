"""Models of transformers with random weights, and the observable effects of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tj_conformance.sampling import FULL

__all__ = ["MODELS", "Model", "chosen", "contents", "language", "step"]

DECODER = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
ENCODER = {k: v for k, v in DECODER.items() if k != "num_key_value_heads"}


def language(batch: int = 2, length: int = 16) -> dict[str, Any]:
    """Token ids, which are the labels too: int64 [batch, length]."""
    tokens = torch.randint(3, 128, (batch, length))
    return {"input_ids": tokens, "labels": tokens}


def translation(batch: int = 2, length: int = 16) -> dict[str, Any]:
    """Token ids: int64 [batch, length], labels half as long."""
    labels = torch.randint(3, 128, (batch, length // 2))
    return {"input_ids": torch.randint(3, 128, (batch, length)), "labels": labels}


def speech(batch: int = 2, length: int = 16) -> dict[str, Any]:
    """A spectrogram of the one size that Whisper takes: float32 [batch, 8, 32]; labels."""
    labels = torch.randint(3, 128, (batch, length // 2))
    return {"input_features": torch.randn(batch, 8, 32), "labels": labels}


def image(batch: int = 2, length: int = 16) -> dict[str, Any]:
    """Images: float32 [batch, 3, length, length]; labels: int64 [batch]."""
    labels = torch.arange(batch) * 2 % 5 + 1
    return {"pixel_values": torch.randn(batch, 3, length, length), "labels": labels % 5}


@dataclass(frozen=True)
class Model:
    """A model of transformers with two layers of width 64, and a maker of its arguments.

    ``batch`` makes arguments, by default with two rows and a length of 16.
    """

    name: str
    head: str
    sizes: Mapping[str, Any]
    batch: Callable[..., dict[str, Any]] = language
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Any:
        """The model, always with the same weights.

        :raises ImportError: if transformers is not installed.
        """
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, f"{self.name}Config")(**self.sizes)
        model = getattr(transformers, f"{self.name}{self.head}")(config)
        for name, value in self.attributes.items():
            setattr(model, name, value)
        return model


MODELS = {
    "llama": Model("Llama", "ForCausalLM", DECODER),
    "gpt2": Model(
        "GPT2",
        "LMHeadModel",
        {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
        attributes={"loss_type": "ForCausalLM"},  # else transformers logs: a graph break
    ),
    "bert": Model("Bert", "ForMaskedLM", ENCODER),
    "mistral": Model("Mistral", "ForCausalLM", DECODER | {"sliding_window": 8}),
    "qwen2": Model("Qwen2", "ForCausalLM", DECODER),
    "vit": Model(
        "ViT",
        "ForImageClassification",
        {k: v for k, v in ENCODER.items() if k not in ("vocab_size", "max_position_embeddings")}
        | {"image_size": 16, "patch_size": 4, "num_labels": 5},
        image,
    ),
    "t5": Model(
        "T5",
        "ForConditionalGeneration",
        {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2}
        | {"num_heads": 4, "decoder_start_token_id": 0},
        translation,
    ),
    "mamba": Model(
        "Mamba",
        "ForCausalLM",
        # With its associative scan, transformers computes another way where it sees a compiler.
        {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
        | {"use_associative_scan": False},
    ),
    "whisper": Model(
        "Whisper",
        "ForConditionalGeneration",
        {"vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8}
        | {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 16}
        | {"max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"decoder_start_token_id": 2, "suppress_tokens": None, "begin_suppress_tokens": None}
        | {"dropout": 0.1, "attention_dropout": 0.1},
        speech,
    ),
    "qwen2moe": Model(
        "Qwen2Moe",
        "ForCausalLM",
        DECODER
        | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "num_experts": 4}
        | {"num_experts_per_tok": 2, "output_router_logits": True},
    ),
}


def chosen(*names: str) -> tuple[str, ...]:
    """Models for a test: every model with ``TJ_FULL=1``, else ``names``."""
    return tuple(MODELS) if FULL else names


def contents(value: Any) -> Any:
    """``value`` with caches, which compare by identity, replaced by their contents."""
    if isinstance(value, Mapping):
        return type(value).__name__, {k: contents(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [contents(v) for v in value]
    if isinstance(value, torch.Tensor):
        return value.detach()
    if type(value).__module__ == "transformers.cache_utils":
        return type(value).__name__, {k: contents(v) for k, v in sorted(vars(value).items())}
    return value


def step(model: Any, run: Any, batch: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Run a training step of ``model`` by calling ``run``; return
    its results, gradients and state.
    """
    model.zero_grad()
    torch.manual_seed(seed)
    out = run(**batch)
    out.loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    if not any(g is not None and g.abs().sum() > 0 for g in grads.values()):
        raise AssertionError("nothing got a gradient: the step shows nothing")
    found = {"type": type(out), "out": contents(out), "grads": grads, "random": torch.rand(3)}
    model.zero_grad(set_to_none=True)
    return found

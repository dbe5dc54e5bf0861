"""Small configurations of transformers' architectures, made from their classes alone."""

from __future__ import annotations

from typing import Any

__all__ = ["VOCABULARY", "small"]

VOCABULARY = 99

WIDTH = dict.fromkeys(
    ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 32
)
DEPTH = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"),
    2,
)
HEADS = dict.fromkeys(
    (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
    ),
    4,
)
INNER = dict.fromkeys(
    (
        "intermediate_size",
        "d_ff",
        "n_inner",
        "ffn_dim",
        "encoder_ffn_dim",
        "decoder_ffn_dim",
        "hidden_dim",
    ),
    64,
)
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
OTHERS = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "max_source_positions": 64,
    "max_target_positions": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
    "state_size": 8,
    "mamba_d_state": 8,
    "projection_dim": 16,
    "sliding_window": 8,
    "num_mel_bins": 8,
}
SIZES = WIDTH | DEPTH | HEADS | INNER | EXPERTS | OTHERS
TOKENS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
PARTS = ("text_config", "vision_config", "audio_config")


def small(config: Any, changes: dict[str, Any]) -> Any:
    """An instance of the class ``config`` with small sizes, and ``changes``; None takes one back.

    A size is set where the class has a default for it.
    """
    base = config()
    sizes = {k: v for k, v in SIZES.items() if isinstance(getattr(base, k, None), int | float)}
    given: dict[str, Any] = sizes | {k: v for k, v in TOKENS.items() if hasattr(base, k)}
    if getattr(base, "layer_types", None) and "layer_types" in vars(base):
        given["layer_types"] = ([*dict.fromkeys(base.layer_types)] * 2)[:2]
    for name, part in (getattr(config, "sub_configs", None) or {}).items():
        if name in PARTS and part is not None and part.__name__ != "AutoConfig":
            given[name] = small(part, changes.get(name, {})).to_dict()
    given |= {k: v for k, v in changes.items() if k not in PARTS}
    return config(**{k: v for k, v in given.items() if v is not None})

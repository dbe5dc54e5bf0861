"""Architectures of transformers: language, vision, sound, several at once, and time series."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tj_suites.architectures.architecture import Architecture, of_transformers
from tj_suites.architectures.batches import (
    captioned,
    heard,
    looked_at,
    read,
    spectrogram,
    translated,
)

__all__ = ["TRANSFORMERS"]

_decoder = of_transformers("decoder", "AutoModelForCausalLM", read)
_experts = of_transformers("mixture of experts", "AutoModelForCausalLM", read)
_states = of_transformers("state space", "AutoModelForCausalLM", read)
_encoder = of_transformers("encoder", "AutoModelForMaskedLM", read)
_translating = of_transformers("encoder-decoder", "AutoModelForSeq2SeqLM", translated)
_seeing = of_transformers("vision", "AutoModelForImageClassification", looked_at)
_hearing = of_transformers("audio", "AutoModelForAudioClassification", heard)
_dual = of_transformers("multimodal", "AutoModel", captioned)


def _series() -> dict[str, Any]:
    return {"past_values": torch.randn(2, 32, 3), "future_values": torch.randn(2, 8, 3)}


def _observed() -> dict[str, Any]:
    past, future = torch.rand(2, 23), torch.rand(2, 8)
    return {
        "past_values": past,
        "past_time_features": torch.rand(2, 23, 2),
        "past_observed_mask": torch.ones(2, 23),
        "future_values": future,
        "future_time_features": torch.rand(2, 8, 2),
    }


def _forecasting(name: str, batch: Any, sizes: dict[str, Any], *breaks: str) -> Architecture:
    """One that says how a series goes on, under the name of its class."""
    import_name = {"patchtst": "PatchTST", "patchtsmixer": "PatchTSMixer"}.get(name)
    title = import_name or "".join(word.title() for word in name.split("_"))
    return of_transformers("time series", f"{title}ForPrediction", batch, sizes)(name, *breaks)


PATCHES: dict[str, Any] = {"context_length": 32, "prediction_length": 8, "num_input_channels": 3}
PATCHES |= {"patch_length": 8, "patch_stride": 8}
LAGS: dict[str, Any] = {"context_length": 16, "prediction_length": 8, "num_time_features": 2}
LAGS |= {"lags_sequence": [1, 2, 7]}
UNMASKED = {"mask_time_prob": 0.0}
STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "patch_size": 4}
STAGES |= {"num_hidden_layers": None, "num_stages": 4}
WINDOWS: dict[str, Any] = {"embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
WINDOWS |= {"patch_size": 4}

LOGS = "logging.Logger"
"""A part of the warning that a network writes to a log in its first call."""

DROPS = "Data-dependent branching"
"""The same of one that leaves out layers in training, by random numbers."""

LANGUAGE = (
    *map(_decoder, ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")),
    *map(_decoder, ("phi", "phi3", "gpt_neox", "gpt_bigcode", "opt", "bloom")),
    _decoder("gpt2", LOGS),
    *map(_decoder, ("mpt", "olmo2", "stablelm", "starcoder2", "cohere", "granite", "glm4")),
    *map(_decoder, ("diffllama", "apertus", "biogpt")),
    _decoder("ctrl", LOGS),
    _decoder("falcon", head_dim=None),
    *map(_experts, ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "olmoe", "phimoe", "jetmoe")),
    # Where a compiler is at work, these scan by `associative_scan`.
    *(replace(_states(name), rounds=True) for name in ("mamba", "falcon_mamba")),
    *map(_states, ("rwkv", "nemotron_h", "qwen3_next", "lfm2")),
    *map(_encoder, ("bert", "roberta", "albert", "electra", "deberta-v2", "distilbert")),
    *map(_encoder, ("modernbert", "mpnet", "squeezebert", "fnet", "convbert")),
    _encoder("big_bird", LOGS),
    *map(_encoder, ("nystromformer", "mobilebert", "roformer")),
    _encoder("longformer", "Eq(u0, 1)", attention_window=[8, 8]),  # asks whether any is global
    *map(_translating, ("bart", "mbart", "pegasus", "marian", "blenderbot", "umt5", "plbart")),
    *(_translating(name, DROPS) for name in ("m2m_100", "nllb-moe")),
    _translating("t5", decoder_start_token_id=0),
    # Hidden states are collected, which Dynamo sees as None: in torch.compile, too.
    *(
        _translating(name, "where Dynamo captures it", decoder_start_token_id=0)
        for name in ("longt5", "switch_transformers")
    ),
)
SIGHT_AND_SOUND = (
    *map(_seeing, ("vit", "beit", "dinov2", "vit_msn", "focalnet")),
    *map(_seeing, ("mobilenet_v2", "mobilevit", "cvt", "segformer", "poolformer")),
    _seeing("swin", **WINDOWS),
    *(_seeing(name, **STAGES) for name in ("convnext", "convnextv2")),
    *(_hearing(n, **UNMASKED) for n in ("wav2vec2", "hubert", "wavlm", "sew", "data2vec-audio")),
    of_transformers("audio", "AutoModelForSpeechSeq2Seq", spectrogram)(
        "speech_to_text", input_feat_per_channel=8, conv_channels=32
    ),
    *map(_dual, ("clip", "siglip", "blip", "chinese_clip")),
    of_transformers("multimodal", "AutoModelForCausalLM", captioned)("git"),
)
SERIES = (
    *(_forecasting(name, _series, PATCHES) for name in ("patchtst", "patchtsmixer")),
    *(
        _forecasting(name, _observed, LAGS, DROPS)
        for name in ("time_series_transformer", "informer", "autoformer")
    ),
)

TRANSFORMERS: tuple[Architecture, ...] = (*LANGUAGE, *SIGHT_AND_SOUND, *SERIES)
"""Architectures of transformers."""

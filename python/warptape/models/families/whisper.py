"""Whisper: an encoder of log-mel features, and a decoder that attends to it. Names of tensors are ours."""

from __future__ import annotations

from typing import Any

from ...distributed.checkpoint import NameMap
from .declare import NO_TOKENS, TOKENS, Architecture, same


def _names(config: Any) -> NameMap:
    return NameMap({}, prefix="model.", ignore=("proj_out.weight",))  # which is embed_tokens


SPEECH: dict[str, Architecture] = {
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        {
            **same(
                "vocab_size", "num_mel_bins", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"
            ),
            **same("max_source_positions", "decoder_start_token_id"),
            **TOKENS,
            "initializer_range": "init_std",
            "hidden_size": "d_model",
            "num_hidden_layers": "decoder_layers",
            "num_attention_heads": "decoder_attention_heads",
            "intermediate_size": "decoder_ffn_dim",
            "max_position_embeddings": "max_target_positions",
            "hidden_act": "activation_function",
        },
        {
            "num_mel_bins": 80,
            "max_source_positions": 1500,
            "max_position_embeddings": 448,
            "decoder_start_token_id": 50257,
            "initializer_range": 0.02,
            "hidden_act": "gelu",
            **NO_TOKENS,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 50256),
        },
        _names,
        only={
            "scale_embedding": False,
            "tie_word_embeddings": True,
            **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
            **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
        },
        rotary=False,
    ),
}

"""Small decoders of each architecture, with the options that it has, and their random tokens."""

from __future__ import annotations

from typing import Any

import warptape as wt
from warptape.models import Decoder, DecoderConfig, RotaryScaling

V, T = 40, 12
SMALL: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "initializer_range": 0.2,  # so that every part has something to say
}
LLAMA3 = RotaryScaling(rope_type="llama3", factor=4.0, original_max_position_embeddings=16)
CONFIGS = {
    "gpt2": DecoderConfig(
        **SMALL,
        architecture="gpt2",
        norm="layer_norm",
        norm_eps=1e-5,
        positions="learned",
        gated=False,
        hidden_act="gelu_new",
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "tie_word_embeddings"), True),
    ),
    "llama": DecoderConfig(**SMALL, num_key_value_heads=2, rope_scaling=LLAMA3, rope_theta=5e5),
    "llama-biases": DecoderConfig(
        **SMALL,
        num_key_value_heads=1,
        head_dim=10,
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "tie_word_embeddings"), True),
    ),
    "mistral": DecoderConfig(**SMALL, architecture="mistral", num_key_value_heads=2, sliding_window=5),
    "qwen2": DecoderConfig(
        **SMALL,
        architecture="qwen2",
        num_key_value_heads=2,
        qkv_bias=True,
        sliding_window=4,
        layer_types=("full_attention", "sliding_attention", "sliding_attention"),
    ),
    "qwen3": DecoderConfig(
        **SMALL,
        architecture="qwen3",
        num_key_value_heads=2,
        head_dim=8,
        qk_norm=True,
        tie_word_embeddings=True,
    ),
}


def build(name: str, seed: int = 0) -> Decoder:
    """A decoder in evaluation mode; biases and norms are random, too."""
    wt.manual_seed(seed)
    model = Decoder(CONFIGS[name])
    with wt.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(wt.randn(p.shape) * 0.2)
    return model.eval()


def tokens(batch: int = 2, count: int = T, seed: int = 1) -> wt.Tensor:
    """Random tokens [B, T]."""
    return wt.randint(0, V, (batch, count), generator=wt.Generator().manual_seed(seed))

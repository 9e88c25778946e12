"""Small decoders of each architecture, with the options that it has, their tokens, and folders of them."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import warptape as wt
from warptape.models import Decoder, DecoderConfig, Encoder, EncoderConfig, RotaryScaling

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
        rope_scaling=RotaryScaling(rope_type="linear", factor=2.0),
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

BERT = EncoderConfig(
    vocab_size=V,
    hidden_size=16,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=12,
    initializer_range=0.2,
)


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


def write_folder(name: str, folder: Path) -> None:
    """A folder of one of CONFIGS, or of BERT, whose tensors NumPy draws from the CRC-32 of their names."""
    model = Encoder(BERT) if name == "bert" else Decoder(CONFIGS[name])
    model.save_pretrained(folder)  # for names and shapes
    path = folder / "model.safetensors"
    arrays = {}
    for key, array in safetensors.numpy.load_file(path).items():
        drawn = np.random.default_rng(zlib.crc32(key.encode())).standard_normal(array.shape) * 0.2
        ones = array.ndim == 1 and key.endswith("weight")  # of a norm
        arrays[key] = (drawn + ones).astype(np.float32)
    safetensors.numpy.save_file(arrays, path, {"format": "pt"})


def fixed_tokens() -> np.ndarray:
    """The tokens [2, T] whose results are recorded."""
    return np.random.default_rng(4).integers(0, V, (2, T))

"""Small decoders of each architecture, with the options that it has, their tokens, and folders of them."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import warptape as wt
from warptape.models import Decoder, DecoderConfig, Encoder, EncoderConfig, RotaryScaling
from warptape.models.llava import Llava, LlavaConfig
from warptape.models.parts import ExpertsConfig, LatentConfig
from warptape.models.siglip import Siglip, SiglipConfig, SiglipTextConfig
from warptape.models.vision import VisionConfig
from warptape.models.whisper import Whisper, WhisperConfig

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
YARN = RotaryScaling(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=2.0, beta_slow=0.5
)
GEMMA: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 10,
    "norm": "rms_norm_plus_one",
    "hidden_act": "gelu_pytorch_tanh",
    "embedding_scale": math.sqrt(24),
    "tie_word_embeddings": True,
}
LAYER_NORMS: dict[str, Any] = {
    "norm": "layer_norm",
    "norm_eps": 1e-5,
    "gated": False,
    **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True),
}
LATENT = {"kv_rank": 12, "plain_width": 6, "rotary_width": 4, "value_width": 8}
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
    "phi3": DecoderConfig(
        **SMALL, architecture="phi3", num_key_value_heads=2, sliding_window=7, rotary_factor=0.7
    ),
    "smollm3": DecoderConfig(
        **SMALL,
        architecture="smollm3",
        num_key_value_heads=2,
        rotary_layers=(True, False, True),
        rope_theta=2e6,
        tie_word_embeddings=True,
    ),
    "olmo2": DecoderConfig(
        **SMALL, architecture="olmo2", num_key_value_heads=2, norm_placement="after", qk_norm="all"
    ),
    "olmo3": DecoderConfig(
        **SMALL,
        architecture="olmo3",
        num_key_value_heads=2,
        norm_placement="after",
        qk_norm="all",
        sliding_window=5,
        layer_types=("sliding_attention", "full_attention", "sliding_attention"),
        rope_scaling=YARN,
        rope_theta=1e3,
        local_rope_theta=1e3,
    ),
    "granite": DecoderConfig(
        **SMALL,
        architecture="granite",
        num_key_value_heads=2,
        embedding_scale=3.0,
        residual_scale=0.5,
        attention_scale=0.25,
        logit_scale=0.8,
    ),
    "granite4": DecoderConfig(
        **SMALL,
        architecture="granitemoehybrid",
        num_key_value_heads=2,
        embedding_scale=3.0,
        residual_scale=0.5,
        attention_scale=0.25,
        logit_scale=0.8,
    ),
    "gemma": DecoderConfig(**SMALL, **GEMMA, architecture="gemma"),
    "gemma3": DecoderConfig(
        **SMALL,
        **GEMMA,
        architecture="gemma3_text",
        norm_placement="around",
        qk_norm="head",
        attention_scale=0.25,
        sliding_window=5,
        layer_types=("sliding_attention", "sliding_attention", "full_attention"),
        rope_theta=1e6,
        local_rope_theta=1e4,
        logit_softcap=5.0,
    ),
    "gemma2": DecoderConfig(
        **SMALL,
        **GEMMA,
        architecture="gemma2",
        norm_placement="around",
        attention_scale=0.25,
        attention_softcap=2.0,
        sliding_window=5,
        layer_types=("sliding_attention", "full_attention", "sliding_attention"),
        logit_softcap=5.0,
    ),
    "mixtral": DecoderConfig(
        **SMALL,
        architecture="mixtral",
        num_key_value_heads=2,
        experts=ExpertsConfig(count=4, per_token=2, width=36, normalize=True),
    ),
    "qwen2-moe": DecoderConfig(
        **SMALL,
        architecture="qwen2_moe",
        num_key_value_heads=2,
        qkv_bias=True,
        experts=ExpertsConfig(
            count=5, per_token=2, width=20, shared_width=28, shared_gate=True, layers=(False, True, True)
        ),
    ),
    "qwen3-moe": DecoderConfig(
        **SMALL,
        architecture="qwen3_moe",
        num_key_value_heads=2,
        head_dim=8,
        qk_norm="head",
        experts=ExpertsConfig(count=6, per_token=3, width=16, normalize=True),
    ),
    "gpt-oss": DecoderConfig(
        **SMALL | {"intermediate_size": 20},
        architecture="gpt_oss",
        num_key_value_heads=2,
        head_dim=8,
        qkv_bias=True,
        o_bias=True,
        attention_sinks=True,
        sliding_window=5,
        layer_types=("sliding_attention", "full_attention", "sliding_attention"),
        rope_scaling=replace(YARN, truncate=False),
        experts=ExpertsConfig(
            count=4, per_token=2, width=20, scores="chosen", bias=True, alternating=True, limit=1.5
        ),
    ),
    "deepseek-v2": DecoderConfig(
        **SMALL,
        architecture="deepseek_v2",
        rotary_interleaved=True,
        latent=LatentConfig(**LATENT),
        experts=ExpertsConfig(
            count=6,
            per_token=3,
            width=16,
            shared_width=32,
            scale=1.5,
            groups=3,
            groups_kept=2,
            layers=(False, True, True),
        ),
    ),
    "deepseek-v3": DecoderConfig(
        **SMALL,
        architecture="deepseek_v3",
        rotary_interleaved=True,
        latent=LatentConfig(**LATENT, query_rank=10),
        rope_scaling=replace(YARN, mscale=1.0, mscale_all_dim=0.7),
        experts=ExpertsConfig(
            count=8,
            per_token=2,
            width=16,
            shared_width=16,
            scores="sigmoid",
            normalize=True,
            scale=2.5,
            choice_bias=True,
            groups=4,
            groups_kept=2,
            group_best=2,
        ),
    ),
    "phi3-longrope": DecoderConfig(
        **SMALL,
        architecture="phi3",
        rope_scaling=RotaryScaling(
            rope_type="longrope",
            factor=4.0,
            original_max_position_embeddings=8,
            short_factor=(1.0, 1.1, 1.2),
            long_factor=(1.0, 2.5, 7.0),
        ),
    ),
    "gpt-neox": DecoderConfig(
        **SMALL,
        **LAYER_NORMS,
        architecture="gpt_neox",
        hidden_act="gelu",
        parallel_residual=True,
        qkv_by_head=True,
        rotary_factor=0.34,
    ),
    "glm4": DecoderConfig(
        **SMALL,
        architecture="glm4",
        num_key_value_heads=2,
        head_dim=8,
        qkv_bias=True,
        norm_placement="around",
        rotary_interleaved=True,
        rotary_factor=0.5,
    ),
    "starcoder2": DecoderConfig(
        **SMALL,
        **LAYER_NORMS,
        architecture="starcoder2",
        num_key_value_heads=2,
        hidden_act="gelu_pytorch_tanh",
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
ROBERTA = replace(
    BERT,
    architecture="xlm-roberta",
    max_position_embeddings=14,
    pad_token_id=1,
    positions_behind_padding=True,
)
MODERN = EncoderConfig(
    **SMALL | {"max_position_embeddings": 24},
    architecture="modernbert",
    norm_eps=1e-5,
    pad_token_id=0,
    positions="rotary",
    rope_theta=500.0,
    local_rope_theta=50.0,
    norm_placement="before",
    gated=True,
    sliding_window=3,
    layer_types=("full_attention", "sliding_attention", "sliding_attention"),
    **dict.fromkeys(("norm_bias", "qkv_bias", "o_bias", "mlp_bias"), False),
    **dict.fromkeys(("residual_dropout", "attention_dropout"), 0.0),
)
ENCODERS = {"bert": BERT, "xlm-roberta": ROBERTA, "modernbert": MODERN}
HEADS = {
    "bert-sequence": replace(BERT, task="sequence", labels=("no", "yes", "maybe")),
    "bert-token": replace(BERT, task="token", labels=("O", "B", "I"), pooler=False),
    "xlm-roberta-sequence": replace(
        ROBERTA, task="sequence", labels=("fits",), head_act="tanh", pooler=False
    ),
    "xlm-roberta-token": replace(ROBERTA, task="token", labels=("O", "B"), pooler=False),
    "modernbert-sequence": replace(
        MODERN, task="sequence", labels=("a", "b"), head_act="gelu", head_pooling="mean"
    ),
    "modernbert-token": replace(MODERN, task="token", labels=("a", "b"), head_act="relu", head_bias=True),
}


WHISPER = WhisperConfig(
    vocab_size=V,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=36,
    encoder_layers=1,
    encoder_attention_heads=3,
    encoder_ffn_dim=32,
    max_source_positions=50,
    max_position_embeddings=24,
    initializer_range=0.2,
    decoder_start_token_id=3,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 2),
)


PIXELS: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 20,
    "patch_size": 6,
}
SIGLIP = SiglipConfig(
    text=SiglipTextConfig(
        vocab_size=V,
        hidden_size=24,
        intermediate_size=36,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=T,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=1,
    ),
    vision=VisionConfig(**PIXELS),
)
CLIP = VisionConfig(
    **PIXELS,
    architecture="clip_vision_model",
    hidden_act="quick_gelu",
    norm_eps=1e-5,
    class_token=True,
    head=False,
    initializer_range=0.2,
)
IMAGE = V - 1  # the token
LLAVA = LlavaConfig(
    text=DecoderConfig(**SMALL | {"max_position_embeddings": 96}, num_key_value_heads=2),
    vision=CLIP,
    image_token_id=IMAGE,
)
SEEING: dict[str, Any] = {"siglip": (Siglip, SIGLIP), "llava": (Llava, LLAVA), "whisper": (Whisper, WHISPER)}


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
    """A folder of CONFIGS, ENCODERS, HEADS or SEEING, its tensors drawn by the CRC-32 of their names."""
    kind, config = SEEING.get(name, (None, None))
    model: Any = None if kind is None else kind(config)
    encoders = {**ENCODERS, **HEADS}
    model = model or (Encoder(encoders[name]) if name in encoders else Decoder(CONFIGS[name]))
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

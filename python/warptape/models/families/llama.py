"""Llama and what differs from it by few options: Mistral, Qwen, Phi-3, SmolLM3, OLMo, Granite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...distributed.checkpoint import LLAMA, NameMap
from .declare import (
    BOTH_BIASES,
    NO_BIASES,
    NO_TOKENS,
    SIZES,
    TOKENS,
    Architecture,
    Read,
    same,
    separate_names,
)

KEYS = {
    **SIZES,
    **same("num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings"),
    **same("initializer_range", "attention_dropout"),
    **TOKENS,
    "norm_eps": "rms_norm_eps",
}
DEFAULTS = {
    "hidden_act": "silu",
    "num_key_value_heads": None,
    "head_dim": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "norm_eps": 1e-6,
    **NO_TOKENS,
}
_LLAMA_TOKENS = {"bos_token_id": 1, "eos_token_id": 2}


def llama_names(config: Any) -> NameMap:
    """Of Llama's tensors.

    Args:
        config: says what is joined here.
    """
    return separate_names(config, {})


def _joined_names(config: Any) -> NameMap:
    return NameMap(prefix=LLAMA.prefix, ignore=LLAMA.ignore)


def _olmo_names(config: Any) -> NameMap:
    after = {
        "attention_output_norm": "post_attention_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    }
    return separate_names(config, after)


def _after_full(layer: int, most: int) -> bool:
    return layer >= most


_INVERSE = Read(lambda scaling: 1 / scaling, lambda scale: 1 / scale)
_OLMO: dict[str, Any] = {
    "keys": {**KEYS, **BOTH_BIASES},
    "names": _olmo_names,
    "implied": {"norm_placement": "after", "qk_norm": "all"},
}
_OLMO_DEFAULTS = {**DEFAULTS, **NO_BIASES, "norm_eps": 1e-5, "eos_token_id": 50279, "pad_token_id": 1}
_GRANITE_KEYS = {
    **{field: key for field, key in KEYS.items() if field != "head_dim"},
    **BOTH_BIASES,
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention_scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
_GRANITE_DEFAULTS = {
    **DEFAULTS,
    **_LLAMA_TOKENS,
    **NO_BIASES,
    **dict.fromkeys(("embedding_scale", "residual_scale", "attention_scale", "logit_scale"), 1.0),
}


def _granite4_names(config: Any) -> NameMap:
    shared = {"mlp.gate_up_proj": "shared_mlp.input_linear", "mlp.down_proj": "shared_mlp.output_linear"}
    return separate_names(config, shared, gate_up=False)


def _granite4_is_dense(data: Mapping[str, Any]) -> bool:
    """False, what biases its MLP has; its models with experts or state space layers are refused."""
    if {*(data.get("layer_types") or ["linear_attention"])} - {"attention", "full_attention"}:
        raise ValueError("layers other than attention's are not supported")
    if data.get("num_local_experts", 8) or data.get("position_embedding_type") != "rope":
        raise ValueError("only models without experts and with rotary positions are supported")
    return False


LLAMAS: dict[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM",
        {**KEYS, **BOTH_BIASES, "mlp_bias": "mlp_bias"},
        {**DEFAULTS, **_LLAMA_TOKENS, **NO_BIASES, "mlp_bias": False},
        llama_names,
    ),
    "mistral": Architecture(
        "MistralForCausalLM",
        {**KEYS, "sliding_window": "sliding_window"},
        {**DEFAULTS, **_LLAMA_TOKENS, "num_key_value_heads": 8, "sliding_window": 4096},
        llama_names,
    ),
    "qwen2": Architecture(
        "Qwen2ForCausalLM",
        KEYS,
        {**DEFAULTS, "num_key_value_heads": 32},
        llama_names,
        implied={"qkv_bias": True},
        slides=_after_full,
    ),
    "qwen3": Architecture(
        "Qwen3ForCausalLM",
        {**KEYS, **BOTH_BIASES},
        {**DEFAULTS, **NO_BIASES, "num_key_value_heads": 32, "head_dim": 128},
        llama_names,
        implied={"qk_norm": "head"},
        slides=_after_full,
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        {
            **{field: key for field, key in KEYS.items() if field != "head_dim"},
            "residual_dropout": "resid_pdrop",
            "embedding_dropout": "embd_pdrop",
            "sliding_window": "sliding_window",
        },
        {
            **DEFAULTS,
            **dict.fromkeys(("residual_dropout", "embedding_dropout"), 0.0),
            "bos_token_id": 1,
            "eos_token_id": 32000,
            "pad_token_id": 32000,
            "norm_eps": 1e-5,
            "sliding_window": None,
        },
        _joined_names,
        partial=1.0,
        scalings=("longrope",),
    ),
    "smollm3": Architecture(
        "SmolLM3ForCausalLM",
        {**KEYS, **BOTH_BIASES, "mlp_bias": "mlp_bias", "rotary_layers": "no_rope_layers"},
        {
            **DEFAULTS,
            **NO_BIASES,
            "mlp_bias": False,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "pad_token_id": 128004,
            "rotary_layers": None,
        },
        llama_names,
        # Their list has 1 where there are positions, and none means all but each fourth.
        read={
            "rotary_layers": Read(
                lambda layers: layers if layers is None else [bool(each) for each in layers],
                lambda layers: layers if layers is None else [int(each) for each in layers],
            )
        },
        only={"use_sliding_window": False},
        theta=2e6,
    ),
    "olmo2": Architecture("Olmo2ForCausalLM", defaults=_OLMO_DEFAULTS, **_OLMO),
    "olmo3": Architecture(
        "Olmo3ForCausalLM",
        **{**_OLMO, "keys": {**_OLMO["keys"], "sliding_window": "sliding_window"}},
        defaults={**_OLMO_DEFAULTS, "sliding_window": 4096},
        full_every=4,
        theta=5e5,
        local_theta=5e5,
    ),
    "granite": Architecture(
        "GraniteForCausalLM",
        {**_GRANITE_KEYS, "mlp_bias": "mlp_bias"},
        {**_GRANITE_DEFAULTS, "mlp_bias": False},
        llama_names,
        read={"logit_scale": _INVERSE},
    ),
    "granitemoehybrid": Architecture(
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE_KEYS, "intermediate_size": "shared_intermediate_size"},
        _GRANITE_DEFAULTS,
        _granite4_names,
        implied={"mlp_bias": _granite4_is_dense},
        written=lambda config: {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "intermediate_size": config.intermediate_size,
            "layer_types": ["attention"] * config.num_hidden_layers,
            "position_embedding_type": "rope",
            "mamba_n_heads": 1,  # of what is not there, but transformers asks that it divides
        },
        read={"logit_scale": _INVERSE},
    ),
}

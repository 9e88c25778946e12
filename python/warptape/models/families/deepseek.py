"""DeepSeek-V2 and V3: latent attention, and experts beside some that all tokens pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...distributed.checkpoint import NameMap
from .declare import Architecture, Expert, separate_names
from .llama import DEFAULTS, KEYS

_RENAME = {
    "self_attn.q_a_norm": "self_attn.q_a_layernorm",
    "self_attn.kv_a_norm": "self_attn.kv_a_layernorm",
    "self_attn.kv_a_proj": "self_attn.kv_a_proj_with_mqa",
}


def _names(config: Any) -> NameMap:
    # Layers after the last predict further tokens: they are not part of the decoder.
    extra = tuple(f"layers.{config.num_hidden_layers}" + ".*" * depth for depth in range(1, 6))
    return separate_names(config, _RENAME, mixture=("mlp", Expert()), ignore=extra)


def _sparse_layers(first: int) -> Any:
    def layers(data: Mapping[str, Any]) -> tuple[bool, ...]:
        dense = data.get("first_k_dense_replace", first)
        return tuple(i >= dense for i in range(min(data["num_hidden_layers"], 10_000)))

    return layers


def _shared_width(count: int, width: int) -> Any:
    def shared(data: Mapping[str, Any]) -> int:
        return (data.get("n_shared_experts", count) or 0) * data.get("moe_intermediate_size", width)

    return shared


def _written(config: Any) -> dict[str, Any]:
    experts = config.experts
    dense = [not experts.are_in(i) for i in range(config.num_hidden_layers)]
    return {
        "first_k_dense_replace": (dense + [False]).index(False),
        "n_shared_experts": experts.shared_width // experts.width,
        "num_key_value_heads": config.num_key_value_heads,
    }


def _written_v2(config: Any) -> dict[str, Any]:
    grouped = config.experts.groups > 1
    return {**_written(config), "topk_method": "group_limited_greedy" if grouped else "greedy"}


def _written_v3(config: Any) -> dict[str, Any]:
    return {**_written(config), "num_nextn_predict_layers": 0}


def _of_groups(key: str) -> Any:
    """V2's groups count where topk_method says so alone."""

    def groups(data: Mapping[str, Any]) -> int:
        method = data.get("topk_method", "greedy")
        if method not in ("greedy", "group_limited_greedy"):
            raise ValueError(f"topk_method={method!r:.40} is not supported")
        return data[key] if method == "group_limited_greedy" else 1

    return groups


_KEYS = {
    **{field: key for field, key in KEYS.items() if field not in ("head_dim", "num_key_value_heads")},
    "qkv_bias": "attention_bias",
    "o_bias": "attention_bias",
    "latent.kv_rank": "kv_lora_rank",
    "latent.query_rank": "q_lora_rank",
    "latent.plain_width": "qk_nope_head_dim",
    "latent.rotary_width": "qk_rope_head_dim",
    "latent.value_width": "v_head_dim",
    "experts.count": "n_routed_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.width": "moe_intermediate_size",
    "experts.scale": "routed_scaling_factor",
}
_DEFAULTS = {
    **{field: value for field, value in DEFAULTS.items() if field in _KEYS},
    "qkv_bias": False,
    "o_bias": False,
    "latent.kv_rank": 512,
    "latent.query_rank": 1536,
    "latent.plain_width": 128,
    "latent.rotary_width": 64,
    "latent.value_width": 128,
}
DEEPSEEKS: dict[str, Architecture] = {
    "deepseek_v2": Architecture(
        "DeepseekV2ForCausalLM",
        {**_KEYS, "mlp_bias": "mlp_bias"},
        {
            **_DEFAULTS,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "mlp_bias": False,
            "experts.count": 64,
            "experts.width": 1407,
            "experts.scale": 1.0,
        },
        _names,
        implied={
            "rotary_interleaved": True,
            "experts.layers": _sparse_layers(0),
            "experts.shared_width": _shared_width(2, 1407),
            "experts.groups": _of_groups("n_group"),
            "experts.groups_kept": _of_groups("topk_group"),
        },
        written=lambda config: {
            **_written_v2(config),
            "n_group": config.experts.groups,
            "topk_group": config.experts.groups_kept,
        },
        # transformers passes over norm_topk_prob, and no released model sets it.
        only={"norm_topk_prob": False, "mlp_bias": False, "scoring_func": "softmax", "moe_layer_freq": 1},
    ),
    "deepseek_v3": Architecture(
        "DeepseekV3ForCausalLM",
        {
            **_KEYS,
            "rotary_interleaved": "rope_interleave",
            "experts.normalize": "norm_topk_prob",
            "experts.groups": "n_group",
            "experts.groups_kept": "topk_group",
        },
        {
            **_DEFAULTS,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "rotary_interleaved": True,
            "experts.count": 256,
            "experts.per_token": 8,
            "experts.width": 2048,
            "experts.scale": 2.5,
            "experts.normalize": True,
            "experts.groups": 8,
            "experts.groups_kept": 4,
        },
        _names,
        implied={
            "experts.scores": "sigmoid",
            "experts.choice_bias": True,
            "experts.group_best": 2,
            "experts.layers": _sparse_layers(3),
            "experts.shared_width": _shared_width(1, 2048),
        },
        written=_written_v3,
        only={"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    ),
}

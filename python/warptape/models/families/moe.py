"""Mixtral, and Qwen's mixtures of experts: Mistral's and Qwen's layers with experts in place of the MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...distributed.checkpoint import NameMap
from .declare import BOTH_BIASES, NO_BIASES, Architecture, Expert, separate_names
from .llama import DEFAULTS, KEYS


def _mixtral_names(config: Any) -> NameMap:
    return separate_names(config, {}, mixture=("block_sparse_moe", Expert(parts=("w1", "w3", "w2"))))


def _qwen_names(config: Any) -> NameMap:
    return separate_names(config, {}, mixture=("mlp", Expert(shared="shared_expert")))


def _sparse_layers(data: Mapping[str, Any]) -> tuple[bool, ...]:
    """Each `decoder_sparse_step`-th layer has experts, but for those that are listed."""
    step, dense = data.get("decoder_sparse_step", 1), data.get("mlp_only_layers") or ()
    return tuple(
        (i + 1) % step == 0 and i not in dense for i in range(min(data["num_hidden_layers"], 10_000))
    )


def _written_layers(config: Any) -> dict[str, Any]:
    layers = [config.experts.are_in(i) for i in range(config.num_hidden_layers)]
    for step in range(2, len(layers)):
        if layers == [(i + 1) % step == 0 for i in range(len(layers))]:
            return {"decoder_sparse_step": step, "mlp_only_layers": []}
    return {"decoder_sparse_step": 1, "mlp_only_layers": [i for i, each in enumerate(layers) if not each]}


_WITHOUT_HEAD_DIM = {field: key for field, key in KEYS.items() if field != "head_dim"}
_EXPERTS = {
    "experts.count": "num_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.width": "moe_intermediate_size",
    "experts.normalize": "norm_topk_prob",
}
MIXTURES: dict[str, Architecture] = {
    "mixtral": Architecture(
        "MixtralForCausalLM",
        {
            **KEYS,
            **_EXPERTS,
            "sliding_window": "sliding_window",
            "experts.count": "num_local_experts",
            "experts.width": "intermediate_size",
        },
        {
            **DEFAULTS,
            "num_key_value_heads": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "norm_eps": 1e-5,
            "sliding_window": None,
            "experts.count": 8,
            "experts.per_token": 2,
            "experts.normalize": True,
        },
        _mixtral_names,
        only={"norm_topk_prob": True},
        theta=1e6,
    ),
    "qwen2_moe": Architecture(
        "Qwen2MoeForCausalLM",
        {
            **_WITHOUT_HEAD_DIM,
            **_EXPERTS,
            "qkv_bias": "qkv_bias",
            "experts.shared_width": "shared_expert_intermediate_size",
        },
        {
            **DEFAULTS,
            "num_key_value_heads": 16,
            "qkv_bias": True,
            "experts.count": 60,
            "experts.per_token": 4,
            "experts.width": 1408,
            "experts.normalize": False,
            "experts.shared_width": 5632,
        },
        _qwen_names,
        implied={"experts.layers": _sparse_layers, "experts.shared_gate": True},
        written=_written_layers,
        slides=lambda layer, most: layer % 2 == 0 and layer < most,
    ),
    "qwen3_moe": Architecture(
        "Qwen3MoeForCausalLM",
        {**KEYS, **_EXPERTS, **BOTH_BIASES},
        {
            **DEFAULTS,
            **NO_BIASES,
            "num_key_value_heads": 4,
            "experts.count": 128,
            "experts.per_token": 8,
            "experts.width": 768,
            "experts.normalize": False,
        },
        _qwen_names,
        implied={"qk_norm": "head", "experts.layers": _sparse_layers},
        written=_written_layers,
        other_keys={"num_experts": "num_local_experts"},
        slides=lambda layer, most: True,
    ),
}
